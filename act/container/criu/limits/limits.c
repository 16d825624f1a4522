/*
 * Lets CRIU ask for the limits of other users' processes where root lacks
 * CAP_SYS_RESOURCE, as in many a sandbox: there the kernel does not answer
 * prlimit(2), though it shows the same to everybody as /proc/PID/limits.
 *
 * Loaded before CRIU's libraries, in place of the C library's prlimit64 and syscall. It
 * uses nothing but the kernel, so that it fits any C library. Built by
 *
 *   gcc -Os -fPIC -shared -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
 *     -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-soname,limits.so -s -o limits.so limits.c
 */
struct limits { unsigned long soft, hard; };

extern int *__errno_location(void);

static long call(long n, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
}

enum { READ = 0, OPEN = 2, CLOSE = 3, PRLIMIT = 302, EPERM = 1 };

/* The kernel's columns: a name, then two limits. */
enum { SOFT = 26, HARD = 47, END = 68 };

static unsigned long number(const char *at)
{
	unsigned long n = 0;
	if (*at == 'u') /* unlimited */
		return ~0UL;
	while (*at >= '0' && *at <= '9')
		n = n * 10 + (*at++ - '0');
	return n;
}

/* shown reads a process's limit from what the kernel shows. */
static int shown(int pid, int which, struct limits *out)
{
	char path[32] = "/proc/", text[4096], digits[12], *to = path + 6;
	int n = 0, line = -1;
	long fd, size = 0, got;
	do
		digits[n++] = '0' + pid % 10;
	while (pid /= 10);
	while (n)
		*to++ = digits[--n];
	for (const char *from = "/limits"; (*to++ = *from++);)
		;
	fd = call(OPEN, (long)path, 0, 0, 0, 0, 0);
	if (fd < 0)
		return 0;
	while (size < (long)sizeof text - 1 && (got = call(READ, fd, (long)text + size, sizeof text - 1 - size, 0, 0, 0)) > 0)
		size += got;
	call(CLOSE, fd, 0, 0, 0, 0, 0);
	for (char *at = text, *end = text + size; at < end; line++) {
		char *next = at;
		while (next < end && *next != '\n')
			next++;
		if (line == which) { /* after the headline */
			if (next - at < END)
				return 0;
			out->soft = number(at + SOFT);
			out->hard = number(at + HARD);
			return 1;
		}
		at = next + 1;
	}
	return 0;
}

static long answered(long result)
{
	if (result < 0 && result > -4096) {
		*__errno_location() = (int)-result;
		return -1;
	}
	return result;
}

static long prlimit(int pid, int which, const struct limits *set, struct limits *get)
{
	long result = call(PRLIMIT, pid, which, (long)set, (long)get, 0, 0);
	if (result == -EPERM && !set && get && pid > 0 && shown(pid, which, get))
		return 0;
	return result;
}

int prlimit64(int pid, int which, const struct limits *set, struct limits *get)
{
	return (int)answered(prlimit(pid, which, set, get));
}

/* CRIU asks by its number. */
long syscall(long n, long a, long b, long c, long d, long e, long f)
{
	if (n == PRLIMIT)
		return answered(prlimit((int)a, (int)b, (const struct limits *)c, (struct limits *)d));
	return answered(call(n, a, b, c, d, e, f));
}
