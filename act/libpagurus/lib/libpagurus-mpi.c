/*
 * libpagurus-mpi: MPI_Comm_spawn with the info key "pagurus" starts its ranks in new guests. It is loaded before the MPI library (LD_PRELOAD)
 * in jobs that were submitted with --grow, and fits Open MPI and MPICH alike, of which it needs no header: their handles are passed on as
 * they came, in whole registers (of MPICH's, which are ints, the lower half counts), and new ones have room for the larger kind. It
 * calls libpagurus, which is loaded with it.
 *
 * The keys, of which only the root's count:
 *
 *   pagurus           grow: the ranks start in new guests, or the call fails;  try: or else where the job has guests
 *   pagurus_guests    how many new guests; without it as many as the ranks need
 *   pagurus_seconds   how long they are waited for; without it 120
 *
 * Built by
 *
 *   gcc -Os -fPIC -shared -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
 *     -fno-tree-loop-distribute-patterns -fvisibility=hidden -Wall -Wl,--build-id=none -Wl,-z,noseparate-code \
 *     -s -o libpagurus-mpi.so libpagurus-mpi.c
 */
#pragma GCC visibility push(default)
#include "pagurus.h"

/* Of the program's C library and MPI library, if they have them. */
extern void *dlopen(const char *, int) __attribute__((weak));
extern void *dlsym(void *, const char *) __attribute__((weak));
#pragma GCC visibility pop

enum { RTLD_LAZY_NOLOAD = 1 | 4, WRITE = 1, STDERR = 2, VALUE = 256, USUAL_SECONDS = 120 };
enum { MPICH_INFO_NULL = 0x1c000000, OPEN_MPI_ERR_SPAWN = 50, MPICH_ERR_SPAWN = 42, ERR_OTHER = 16 };

typedef long handle;

typedef int spawns(const char *, char **, long, handle, long, handle, void *, int *);
typedef int gets(handle, const char *, int, char *, int *);
typedef int duplicates(handle, handle *);
typedef int sets(handle, const char *, const char *);
typedef int deletes(handle, const char *);
typedef int frees(handle *);
typedef int ranks(handle, int *);
typedef int tells(char *, int *);
typedef int fails(handle, int);

/* A function of the MPI library, which a program may have loaded by itself, as Python does. 0: there is none. */
static void *find(const char *name)
{
	static const char *const libraries[] = { "libmpi.so.40", "libmpich.so.12", "libmpi.so.12", 0 };
	void *at = dlsym ? dlsym(0, name) : 0;
	int i;
	for (i = 0; !at && dlopen && dlsym && libraries[i]; i++) {
		void *library = dlopen(libraries[i], RTLD_LAZY_NOLOAD);
		at = library ? dlsym(library, name) : 0;
	}
	return at;
}

static int length(const char *s)
{
	int n = 0;
	while (s[n])
		n++;
	return n;
}

static void say(const char *s)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(WRITE), "D"(STDERR), "S"(s), "d"((long)length(s)) : "rcx", "r11", "memory");
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* A number from 1 on; 0: it is none. */
static int number(const char *s)
{
	int n = 0;
	for (; *s >= '0' && *s <= '9'; s++)
		if (n < 1000000)
			n = n * 10 + (*s - '0');
	return *s ? 0 : n;
}

static int open_mpi(void) { return find("ompi_mpi_info_null") != 0; }

static int none(handle info)
{
	void *null = find("ompi_mpi_info_null");
	return null ? !info || info == (handle)null : (unsigned)info == MPICH_INFO_NULL;
}

/* The value of a key, or "". */
static void value(gets *get, handle info, const char *key, char *out)
{
	int flag = 0;
	if (get(info, key, VALUE - 1, out, &flag) != 0 || !flag)
		out[0] = 0;
}

/* Tells why, and has the communicator's error handler do what it does. */
static int failed(handle comm, const char *why)
{
	fails *fail = (fails *)find("PMPI_Comm_call_errhandler");
	int code = open_mpi() ? OPEN_MPI_ERR_SPAWN : MPICH_ERR_SPAWN;
	say("pagurus: MPI_Comm_spawn: ");
	say(*why ? why : "no new guests were started");
	say("\n");
	if (fail)
		fail(comm, code);
	return code;
}

/* Open MPI's key for hosts that are added: from version 5 on it warns of the old one. */
static const char *adds(void)
{
	tells *tell = (tells *)find("PMPI_Get_library_version");
	char text[8192];
	int n = 0;
	text[0] = 0;
	if (!tell || tell(text, &n) != 0 || n < 12 || text[9] != 'v')
		return "add-host";
	return text[10] >= '5' || text[11] != '.' ? "PMIX_ADD_HOST" : "add-host";
}

/* Open MPI's word for so many ranks in each guest. */
static void each(char *out, int n)
{
	static const char before[] = "ppr:", after[] = ":node:oversubscribe";
	char digits[12];
	int i = sizeof digits, k;
	do
		digits[--i] = '0' + n % 10;
	while (n /= 10);
	for (k = 0; before[k]; k++)
		*out++ = before[k];
	while (i < (int)sizeof digits)
		*out++ = digits[i++];
	for (k = 0; after[k]; k++)
		*out++ = after[k];
	*out = 0;
}

/* The growth that the keys ask for. Gives what pagurus_grow gives. */
static int grow(gets *get, handle info, int maxprocs, struct pagurus_growth *growth)
{
	char guests[VALUE], seconds[VALUE];
	int wait = USUAL_SECONDS;
	value(get, info, "pagurus_guests", guests);
	value(get, info, "pagurus_seconds", seconds);
	if (*seconds)
		wait = number(seconds);
	if (*guests)
		return pagurus_grow(number(guests), wait, growth);
	return pagurus_grow_ranks(maxprocs, wait, growth);
}

__attribute__((visibility("default"))) int MPI_Comm_spawn(const char *command, char **argv, long maxprocs, handle info, long root, handle comm, void *intercomm, int *errors)
{
	static const char *const keys[] = { "pagurus", "pagurus_guests", "pagurus_seconds", 0 };
	spawns *spawn = (spawns *)find("PMPI_Comm_spawn");
	gets *get = (gets *)find("PMPI_Info_get");
	duplicates *duplicate = (duplicates *)find("PMPI_Info_dup");
	sets *set = (sets *)find("PMPI_Info_set");
	deletes *delete = (deletes *)find("PMPI_Info_delete");
	frees *free = (frees *)find("PMPI_Info_free");
	ranks *rank = (ranks *)find("PMPI_Comm_rank");
	struct pagurus_growth growth;
	char how[VALUE];
	handle with = 0;
	int me = -1, code, i;
	if (!spawn)
		return ERR_OTHER; /* who calls this has no MPI library */
	if (!get || !duplicate || !set || !delete || !free || !rank || rank(comm, &me) != 0 || me != (int)root || none(info))
		return spawn(command, argv, maxprocs, info, root, comm, intercomm, errors);
	value(get, info, "pagurus", how);
	if (!*how)
		return spawn(command, argv, maxprocs, info, root, comm, intercomm, errors);
	if (!same(how, "grow") && !same(how, "try"))
		return failed(comm, "the info key pagurus has the values grow and try");
	code = grow(get, info, (int)maxprocs, &growth);
	if (code == PAGURUS_INVALID && !*pagurus_text())
		return failed(comm, "pagurus_guests and pagurus_seconds are numbers from 1 on");
	if (code != PAGURUS_OK && code != PAGURUS_NONE && same(how, "grow"))
		return failed(comm, pagurus_text());
	if (duplicate(info, &with) != 0)
		return failed(comm, "its info cannot be copied");
	for (i = 0; keys[i]; i++) {
		value(get, with, keys[i], how);
		if (*how)
			delete(with, keys[i]);
	}
	if (code == PAGURUS_OK && open_mpi()) { /* it learns of them by the one, and starts ranks there alone by the other */
		set(with, adds(), growth.hosts);
		set(with, "host", growth.hosts);
		value(get, with, "map_by", how);
		if (!*how && growth.guests > 0) { /* it has counted their slots twice now, and would fill the first ones */
			each(how, ((int)maxprocs + growth.guests - 1) / growth.guests);
			set(with, "map_by", how);
		}
	} else if (code == PAGURUS_OK) {
		set(with, "hosts", growth.hosts);
	}
	code = spawn(command, argv, maxprocs, with, root, comm, intercomm, errors);
	free(&with);
	return code;
}
