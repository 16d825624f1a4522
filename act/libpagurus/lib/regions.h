/*
 * regions.h: memory that a program does not need at its cheap moments. It is a part of libpagurus.c, and nothing
 * that programs include.
 *
 * At a cheap moment for which a move waits, whole pages of the regions are given back to the kernel. So nothing of
 * them has to be sent. Else nothing happens to them.
 */

enum { OPEN = 2, SCHED_YIELD = 24, MADVISE = 28, GETPID = 39 };
enum { O_RDONLY_CLOEXEC = 02000000, MADV_DONTNEED = 4 };
enum { REGIONS = 64, PAGE = 4096, MAP_LINE = 128 };

/* Whole pages. to is set last and removed first, so that it is never half there; 0: none. */
static struct region { const void *named; unsigned long from; volatile unsigned long to; } regions[REGIONS];

/* The process that works on them; 0: none. After a fork it may be the parent, which does not work on this copy. */
static int regions_by;

static void lock_regions(void)
{
	int me = (int)call(GETPID, 0, 0, 0, 0, 0, 0);
	for (;;) {
		int by = 0;
		if (__atomic_compare_exchange_n(&regions_by, &by, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		if (by != me && __atomic_compare_exchange_n(&regions_by, &by, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		call(SCHED_YIELD, 0, 0, 0, 0, 0, 0);
	}
}

static void unlock_regions(void) { __atomic_store_n(&regions_by, 0, __ATOMIC_RELEASE); }

static long region_bytes(void)
{
	unsigned long n = 0;
	int i;
	for (i = 0; i < REGIONS; i++) {
		unsigned long to = regions[i].to;
		n += to ? to - regions[i].from : 0;
	}
	return (long)n;
}

static int explained(int code, const char *why)
{
	struct line l = { text, 0, sizeof text };
	text[0] = 0;
	add(&l, why);
	return code;
}

static const char *hexadecimal(const char *s, unsigned long *out)
{
	for (*out = 0;; s++) {
		int digit = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : -1;
		if (digit < 0)
			return s;
		*out = *out << 4 | (unsigned long)digit;
	}
}

/* Looks at one line of /proc/self/maps, and goes on with at if it is of memory that can be given back. 0: it is not. */
static int passes(const char *l, unsigned long *at)
{
	unsigned long from, to, skipped;
	const char *mode = hexadecimal(l, &from);
	mode = hexadecimal(*mode ? mode + 1 : mode, &to);
	if (*at < from || *at >= to)
		return 1;
	if (mode[0] != ' ' || mode[1] != 'r' || mode[2] != 'w' || (mode[3] != '-' && mode[3] != 'x') || mode[4] != 'p')
		return 0;
	l = hexadecimal(mode + 6, &skipped);                /* the offset */
	l = hexadecimal(*l ? l + 1 : l, &skipped);          /* the device */
	l = hexadecimal(*l ? l + 1 : l, &skipped);
	if (l[0] != ' ' || l[1] != '0' || (l[2] != ' ' && l[2] != 0)) /* a file's number */
		return 0;
	for (l += 2; *l == ' '; l++)
		;
	if (l[0] == '[' && l[1] == 's') /* the stack */
		return 0;
	*at = to;
	return 1;
}

/* Whether all of it is private memory of no file, which this process may write. */
static int is_anonymous(unsigned long from, unsigned long to)
{
	char buffer[1024], l[MAP_LINE];
	int n = 0, good = 1;
	long fd = call(OPEN, (long)"/proc/self/maps", O_RDONLY_CLOEXEC, 0, 0, 0, 0), got;
	if (fd < 0)
		return 0;
	while (good && from < to && ((got = call(READ, fd, (long)buffer, sizeof buffer, 0, 0, 0)) > 0 || got == -EINTR)) {
		long i;
		for (i = 0; good && from < to && i < got; i++) {
			if (buffer[i] != '\n') {
				if (n < MAP_LINE - 1)
					l[n++] = buffer[i];
				continue;
			}
			l[n] = 0, n = 0;
			good = passes(l, &from);
		}
	}
	call(CLOSE, fd, 0, 0, 0, 0, 0);
	return good && from >= to;
}

/* Tells how much of this process's memory need not be sent. */
static int tell_regions(void)
{
	ASKS;
	add(&line, "scratch ");
	add_number(&line, region_bytes());
	return ask(&line, reply);
}

int pagurus_scratch(void *memory, unsigned long length)
{
	unsigned long at = (unsigned long)memory, from = (at + PAGE - 1) & -(unsigned long)PAGE, to = (at + length) & -(unsigned long)PAGE;
	int i, room = -1, code = PAGURUS_OK;
	if (!memory || at + length < at || from < at || from >= to)
		return explained(PAGURUS_INVALID, "it has no whole page of memory");
	if (!is_anonymous(from, to))
		return explained(PAGURUS_INVALID, "it must be private memory of no file and no stack, which can be written");
	lock_regions();
	for (i = 0; i < REGIONS; i++) {
		if (!regions[i].to)
			room = i;
		else if (from < regions[i].to && regions[i].from < to)
			code = explained(PAGURUS_INVALID, "some of it is scratch already");
	}
	if (code == PAGURUS_OK && room < 0)
		code = explained(PAGURUS_REFUSED, "a process has 64 regions at most");
	if (code == PAGURUS_OK) {
		regions[room].named = memory;
		regions[room].from = from;
		regions[room].to = to;
	}
	unlock_regions();
	return code == PAGURUS_OK ? tell_regions() : code;
}

int pagurus_scratch_end(void *memory)
{
	int i, found = 0;
	lock_regions();
	for (i = 0; i < REGIONS; i++)
		if (regions[i].to && regions[i].named == memory) {
			regions[i].to = 0;
			found = 1;
		}
	unlock_regions();
	return found ? tell_regions() : explained(PAGURUS_INVALID, "no scratch memory begins there");
}

/* Gives them back to the kernel, and tells that. */
static int give_regions(struct line *line, char *reply)
{
	long given = 0;
	int i;
	lock_regions(); /* until all is given: who ends a region may then use it for something else */
	for (i = 0; i < REGIONS; i++) {
		unsigned long from = regions[i].from, to = regions[i].to;
		if (to && call(MADVISE, (long)from, (long)(to - from), MADV_DONTNEED, 0, 0, 0) == 0)
			given += (long)(to - from);
	}
	unlock_regions();
	line->n = 0;
	add(line, "pagurus1 gave ");
	add_number(line, given);
	return ask(line, reply);
}
