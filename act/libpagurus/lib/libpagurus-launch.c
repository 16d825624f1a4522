/*
 * libpagurus-launch: Open MPI's mpirun puts each remote-start command that it forks into a process group of its own, twice, as shells do: in
 * the command and in mpirun. Where the command is the quicker one, it has begun its program when mpirun asks, to which the
 * kernel says EACCES, although the group is what it shall be. mpirun warns of that on the user's terminal. It is loaded
 * before mpirun's libraries (LD_PRELOAD), and takes such a call for what it is: done.
 *
 * What mpirun starts does not load it: it is removed from LD_PRELOAD where mpirun has begun (orterun, prte), but not
 * in Open MPI 5's command mpirun, which becomes prte.
 *
 * Built by
 *
 *   gcc -Os -fPIC -shared -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
 *     -fno-tree-loop-distribute-patterns -fvisibility=hidden -Wall -Wl,--build-id=none -Wl,-z,noseparate-code \
 *     -s -o libpagurus-launch.so libpagurus-launch.c
 */
extern int *__errno_location(void) __attribute__((weak, visibility("default")));

enum { SYS_READLINK = 89, SYS_SETPGID = 109, SYS_GETPGID = 121, EACCES_IS = 13 };

static long call(long number, long a, long b, long c)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

__attribute__((visibility("default"))) int setpgid(int pid, int group)
{
	long result = call(SYS_SETPGID, pid, group, 0);
	if (result == -EACCES_IS && call(SYS_GETPGID, pid, 0, 0) == (group ? group : pid))
		return 0;
	if (result < 0) {
		if (__errno_location)
			*__errno_location() = -result;
		return -1;
	}
	return 0;
}

/* What follows a beginning of a text; 0: it begins otherwise. */
static char *after(char *text, const char *beginning)
{
	while (*beginning)
		if (*text++ != *beginning++)
			return 0;
	return text;
}

/* Reports whether this is the program that starts commands. */
static int launches(void)
{
	char path[4096], *name = path;
	long n = call(SYS_READLINK, (long)"/proc/self/exe", (long)path, sizeof path - 1), i;
	if (n < 0)
		return 0;
	path[n] = 0;
	for (i = 0; i < n; i++)
		if (path[i] == '/')
			name = path + i + 1;
	char *rest = after(name, "orterun");
	if (!rest)
		rest = after(name, "prte");
	return rest && !*rest;
}

__attribute__((constructor)) static void begin(int count, char **arguments, char **environment)
{
	char **v, *rest, *to;
	if (!launches())
		return;
	for (v = environment; *v; v++) {
		to = after(*v, "LD_PRELOAD=");
		rest = to ? after(to, "/usr/lib/x86_64-linux-gnu/libpagurus-launch.so") : 0;
		if (rest && *rest == ':') {
			rest++;
			while ((*to++ = *rest++))
				;
			return;
		}
		if (rest && !*rest) {
			for (; (*v = v[1]); v++)
				;
			return;
		}
	}
}
