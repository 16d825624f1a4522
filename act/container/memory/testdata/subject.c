/* A process whose memory is tested.
 *
 *   subject obey           executes the commands on its standard input, one a line,
 *                          and answers each with "ok ADDRESS" or "error N"
 *   subject churn SEED     maps, writes, moves, drops and unmaps memory at random,
 *                          with threads and children, until it is killed
 *   subject check          until its standard input ends, executes calls that an
 *                          interruption must not disturb, and prints disturbed ones
 *   subject sequences      the same for restartable sequences
 *   subject keep FILE MIB  changes memory, records the changes in memory, and writes
 *                          to FILE whether both agree
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define SLOTS 16

static struct slot { char *at; size_t size; } slots[SLOTS];

static uint64_t next(uint64_t *state) {
	uint64_t z = (*state += 0x9e3779b97f4a7c15);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static void fill(char *at, size_t size, uint64_t seed) {
	uint64_t *word = (uint64_t *)at;
	for (size_t i = 0; i < size / 8; i++) word[i] = next(&seed);
}

static int map(struct slot *s, size_t size, int huge) {
	char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) return -1;
	if (huge) madvise(at, size, huge > 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	*s = (struct slot){at, size};
	return 0;
}

static void *spin(void *arg) {
	struct slot *s = arg;
	for (uint64_t n = 1;; n++)
		for (size_t i = 0; i < s->size; i += PAGE) s->at[i + n % PAGE]++;
	return 0;
}

static void *sleepy(void *arg) {
	for (;;) pause();
	return arg;
}

/* deny makes userfaultfd kill the program, and fork fail. */
static int deny(void) {
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

static pid_t shared_child;

static int hang(void) { /* a child that shares this memory, and lives until it reads a byte */
	static char stack[1 << 16];
	static int p[2];
	if (pipe(p)) return -1;
	extern int clone(int (*)(void *), void *, int, void *, ...);
	int child(void *arg) { char x; (void)!read(*(int *)arg, &x, 1); _exit(0); }
	shared_child = clone(child, stack + sizeof stack, 0x100 /* CLONE_VM */ | SIGCHLD, &p[0]);
	return shared_child;
}

static int obey(char *self);
static void *obeys(void *self) { exit(obey(self)); }

static int one(char *line, char *self) {
	char verb[32] = "", how[32] = "";
	long a = 0, b = 0, c = 0;
	sscanf(line, "%31s %ld %ld %ld %31s", verb, &a, &b, &c, how);
	struct slot *s = &slots[a % SLOTS];
	if (!strcmp(verb, "map")) return map(s, b * PAGE, c);
	if (!strcmp(verb, "fill")) return fill(s->at, s->size, b), 0;
	if (!strcmp(verb, "touch")) { for (size_t i = 0; i < s->size; i += b * PAGE) s->at[i + c % PAGE]++; return 0; }
	if (!strcmp(verb, "zero")) return memset(s->at, 0, s->size), 0;
	if (!strcmp(verb, "look")) { volatile char x; for (size_t i = 0; i < s->size; i += PAGE) x = s->at[i]; (void)x; return 0; }
	if (!strcmp(verb, "drop")) return madvise(s->at, s->size, MADV_DONTNEED);
	if (!strcmp(verb, "unmap")) return munmap(s->at, s->size);
	if (!strcmp(verb, "again")) { /* unmapped, and mapped at the same place */
		if (munmap(s->at, s->size)) return -1;
		return mmap(s->at, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == s->at ? 0 : -1;
	}
	if (!strcmp(verb, "widen")) { /* mapped anew, with more pages before and after it */
		if (munmap(s->at, s->size)) return -1;
		s->at -= b * PAGE;
		s->size += (b + c) * PAGE;
		return mmap(s->at, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == s->at ? 0 : -1;
	}
	if (!strcmp(verb, "narrow")) { /* these are unmapped */
		char *at = s->at + b * PAGE, *end = s->at + s->size - c * PAGE;
		if ((b && munmap(s->at, b * PAGE)) || (c && munmap(end, c * PAGE))) return -1;
		*s = (struct slot){at, end - at};
		return 0;
	}
	if (!strcmp(verb, "patch")) { /* a part of it is mapped again */
		char *at = s->at + b * PAGE;
		return mmap(at, c * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at ? 0 : -1;
	}
	if (!strcmp(verb, "move")) { /* to another slot's address */
		struct slot *t = &slots[b % SLOTS];
		char *at = mremap(s->at, s->size, s->size, MREMAP_MAYMOVE | MREMAP_FIXED, t->at);
		if (at != t->at) return -1;
		t->size = s->size;
		return 0;
	}
	if (!strcmp(verb, "rights")) return mprotect(s->at, s->size, b);
	if (!strcmp(verb, "guard")) return madvise(s->at + b * PAGE, PAGE, 102 /* MADV_GUARD_INSTALL */);
	if (!strcmp(verb, "into")) { /* the kernel writes */
		int f = open("/dev/urandom", O_RDONLY);
		long n = read(f, s->at + b * PAGE, c * PAGE);
		close(f);
		return n == c * PAGE ? 0 : -1;
	}
	if (!strcmp(verb, "spin")) { pthread_t t; return pthread_create(&t, 0, spin, s); }
	if (!strcmp(verb, "threads")) { pthread_t t; for (; b > 0; b--) pthread_create(&t, 0, sleepy, 0); return 0; }
	if (!strcmp(verb, "fork")) { pid_t p = fork(); if (!p) { fill(s->at, s->size, b); for (;;) pause(); } return p < 0 ? -1 : p; }
	if (!strcmp(verb, "share")) return hang();
	if (!strcmp(verb, "hang")) { /* until there is another byte to read */ pid_t p = vfork(); char x; if (!p) _exit(read(0, &x, 1) != 1); return p; }
	if (!strcmp(verb, "leave")) { /* the first thread ends, another goes on */
		pthread_t t;
		printf("ok\n");
		fflush(stdout);
		pthread_create(&t, 0, obeys, self);
		pthread_exit(0);
	}
	if (!strcmp(verb, "deny")) return deny();
	if (!strcmp(verb, "nobody")) return setresuid(65534, 65534, 65534);
	if (!strcmp(verb, "exec")) { printf("ok\n"); fflush(stdout); char *v[] = {self, "obey", 0}; execv(self, v); return -1; }
	errno = EINVAL;
	return -1;
}

static char *line_in(char *line, size_t size) { /* unbuffered, since exec forgets */
	size_t n = 0;
	while (n < size - 1 && read(0, line + n, 1) == 1)
		if (line[n++] == '\n') { line[n] = 0; return line; }
	return 0;
}

static int obey(char *self) {
	char line[256];
	while (line_in(line, sizeof line)) {
		int r = one(line, self);
		if (r < 0) printf("error %d\n", errno);
		else {
			int a = 0;
			sscanf(line, "%*s %d", &a);
			printf("ok %d %lx\n", r, (unsigned long)slots[a % SLOTS].at);
		}
		fflush(stdout);
	}
	return 0;
}

static int churn(uint64_t seed) {
	static struct slot busy[2];
	for (int i = 0; i < 2; i++) {
		pthread_t t;
		map(&busy[i], 256 * PAGE, i ? 1 : -1);
		pthread_create(&t, 0, spin, &busy[i]);
	}
	for (;;) {
		uint64_t r = next(&seed);
		struct slot *s = &slots[r % SLOTS];
		size_t pages = s->size / PAGE;
		r >>= 8;
		if (!s->at) {
			map(s, (1 + r % 1500) * PAGE, (int)(r >> 20) % 3 - 1);
			continue;
		}
		size_t from = (r >> 16) % pages, n = 1 + (r >> 32) % (pages - from);
		char *at = s->at + from * PAGE;
		switch (r % 24) {
		case 0: munmap(s->at, s->size); s->at = 0; break;
		case 1: mmap(s->at, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); break;
		case 2: madvise(at, n * PAGE, MADV_DONTNEED); break;
		case 3: { char *m = mremap(s->at, s->size, s->size + 64 * PAGE, MREMAP_MAYMOVE); if (m != MAP_FAILED) { s->at = m; s->size += 64 * PAGE; } break; }
		case 4: { struct slot *t = &slots[(r >> 40) % SLOTS]; /* onto another slot */
			if (t != s && t->at && t->size >= s->size) { size_t z = t->size; if (mremap(s->at, s->size, s->size, MREMAP_MAYMOVE | MREMAP_FIXED, t->at) == t->at) { if (z > s->size) munmap(t->at + s->size, z - s->size); t->size = s->size; s->at = 0; }
				else { munmap(s->at, s->size); munmap(t->at, t->size); s->at = t->at = 0; } /* a part may have been moved */ } break; }
		case 5: mprotect(at, n * PAGE, PROT_NONE); mprotect(at, n * PAGE, PROT_READ | PROT_WRITE); break;
		case 6: memset(at, 0, n * PAGE); break;
		case 7: { volatile char x; for (size_t i = 0; i < n; i++) x = at[i * PAGE]; (void)x; break; }
		case 8: { pid_t p = fork(); if (!p) { fill(at, n * PAGE, r); _exit(0); } waitpid(p, 0, 0); break; }
		case 9: madvise(at, n * PAGE, MADV_FREE); break;
		case 10: { char *m = mremap(s->at, s->size, s->size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP); if (m != MAP_FAILED) { munmap(s->at, s->size); s->at = m; } break; }
		case 11: if (s->size > 2 * PAGE) { mprotect(s->at, PAGE, PROT_READ); s->at[PAGE]++; mprotect(s->at, PAGE, PROT_READ | PROT_WRITE); } break;
		default: fill(at, (n > 64 ? 64 : n) * PAGE, r);
		}
	}
}

/* An interruption must not change the results of the following functions. */

static char failed[256];
static volatile int over;
static void fail(const char *what, long got) { snprintf(failed, sizeof failed, "%s: %ld (errno %d)", what, got, errno); over = 1; }

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static void *computes(void *arg) { /* in registers */
	for (uint64_t first = 0; !over;) {
		uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7;
		double x = 1.5, y = 2.5;
		for (int i = 0; i < 1000000; i++) {
			a += b * c; b ^= d + a; c = c * 5 + e; d = (d << 7 | d >> 57) + f; e += g ^ a; f -= b; g += 0x9e37; x = x * 0.999 + y; y = y * 0.998 + 1;
		}
		uint64_t sum = a ^ b ^ c ^ d ^ e ^ f ^ g ^ (uint64_t)(x * 1e6) ^ (uint64_t)(y * 1e6);
		if (first && sum != first) fail("a computation", sum);
		first = sum;
	}
	return arg;
}

static void *sleeps(void *arg) {
	while (!over) {
		double t = now();
		struct timespec d = {0, 30000000};
		int r = nanosleep(&d, 0);
		if (r || now() - t < 0.0299) fail("nanosleep", r);
		t = now();
		r = poll(0, 0, 30);
		if (r || now() - t < 0.0299) fail("poll", r);
		t = now();
		struct timeval v = {0, 30000};
		r = select(0, 0, 0, 0, &v);
		if (r || now() - t < 0.0299) fail("select", r);
	}
	return arg;
}

static int ping[2], pong[2];

static void *answers(void *arg) {
	uint64_t x;
	while (read(ping[0], &x, sizeof x) == sizeof x)
		if (write(pong[1], &x, sizeof x) != sizeof x) fail("write", 0);
	return arg;
}

static void *asks(void *arg) {
	for (uint64_t i = 0, x; !over; i++) {
		long r = write(ping[1], &i, sizeof i);
		if (r == sizeof i) r = read(pong[0], &x, sizeof x);
		if (r != sizeof x || x != i) fail("a pipe", r);
	}
	return arg;
}

static volatile int alarms, usr;
static void on_alarm(int s) { alarms += s == SIGALRM; }
static void on_usr(int s) { usr += s == SIGUSR1; }

static void *ends(void *arg) {
	char c;
	long r;
	while ((r = read(0, &c, 1)) > 0);
	if (r) fail("reading the standard input", r);
	over = 1;
	return arg;
}

static int check(void) {
	void *(*all[])(void *) = {computes, sleeps, answers, asks, ends};
	pthread_t t[5];
	sigset_t set, old;
	if (pipe(ping) || pipe(pong)) return 1;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, &old);
	for (int i = 0; i < 5; i++) pthread_create(&t[i], 0, all[i], 0);
	/* This thread, which is the one that is stopped, waits in every possible way
	 * for signals that surely come, and must get each exactly once. */
	struct sigaction sa = {.sa_handler = on_alarm}, sb = {.sa_handler = on_usr, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &sa, 0);
	sigaction(SIGUSR1, &sb, 0);
	printf("ready\n");
	fflush(stdout);
	int want = 0, rounds = 0, quiet[2];
	if (pipe(quiet)) return 1;
	for (; !over; rounds++) {
		struct itimerval v = {.it_value = {0, 20000}};
		struct timespec d = {0, 10000000}, left;
		want++;
		setitimer(ITIMER_REAL, &v, 0);
		int r = sigsuspend(&old); /* SIGALRM is unblocked only here */
		if (r != -1 || errno != EINTR || alarms != want) fail("sigsuspend", alarms - want);
		double begun = now();
		while ((r = nanosleep(&d, &left)) && errno == EINTR) d = left;
		if (r || now() - begun < 0.0099) fail("nanosleep", r);
		want++;
		setitimer(ITIMER_REAL, &v, 0);
		struct pollfd p = {quiet[0], POLLIN, 0};
		struct timespec most = {5, 0};
		r = ppoll(&p, 1, &most, &old);
		if (r != -1 || errno != EINTR || alarms != want) fail("ppoll", r);
		/* A read that a handler without SA_RESTART ends, and never anything else. The
		 * timer goes on: on a busy machine it may come before the read has begun. */
		char x;
		struct itimerval again = {{0, 20000}, {0, 20000}}, none = {};
		pthread_sigmask(SIG_SETMASK, &old, 0);
		setitimer(ITIMER_REAL, &again, 0);
		r = read(quiet[0], &x, 1);
		if (r != -1 || errno != EINTR || alarms == want) fail("read", r);
		setitimer(ITIMER_REAL, &none, 0);
		want = alarms;
		pthread_sigmask(SIG_BLOCK, &set, 0);
		int before = usr;
		raise(SIGUSR1);
		pthread_sigmask(SIG_SETMASK, &old, 0);
		if (usr != before + 1) fail("a pending signal", usr - before);
		pthread_sigmask(SIG_BLOCK, &set, 0);
		pid_t child = fork();
		if (!child) { usleep(5000); _exit(7); }
		int st = 0;
		r = waitpid(child, &st, 0);
		if (r != child || WEXITSTATUS(st) != 7) fail("waitpid", r);
	}
	over = 1;
	sigset_t now_set;
	pthread_sigmask(SIG_BLOCK, 0, &now_set);
	if (!sigismember(&now_set, SIGALRM) || sigismember(&now_set, SIGTERM)) fail("the signal mask", 0);
	if (*failed) { printf("bad %s\n", failed); return 1; }
	printf("good %d\n", rounds);
	return 0;
}

/* Restartable sequences: two threads on one processor add to the same number, in
 * two steps. A thread that continues in the middle after the other had the
 * processor, without being restarted, undoes the other's addition. */
#include <sys/rseq.h>
static volatile uint64_t sum;

static void *adds(void *arg) {
	volatile char *r = (char *)__builtin_thread_pointer() + __rseq_offset;
	uint64_t done = 0;
	while (!over) {
		__asm__ __volatile__ goto(
			".pushsection __rseq_cs, \"aw\"\n\t.balign 32\n3:\n\t.long 0, 0\n\t.quad 1f, 2f-1f, 4f\n\t.popsection\n\t"
			".pushsection __rseq_failure, \"ax\"\n\t.byte 0x0f, 0xb9, 0x3d\n\t.long 0x53053053\n4:\n\tjmp %l[aborted]\n\t.popsection\n\t"
			"leaq 3b(%%rip), %%rax\n\tmovq %%rax, 8(%[r])\n"
			"1:\tmovq (%[sum]), %%rcx\n\tmovl $20000, %%edx\n"
			"5:\tdec %%edx\n\tjnz 5b\n\t"
			"incq %%rcx\n\tmovq %%rcx, (%[sum])\n"
			"2:\n"
			:: [r] "r"(r), [sum] "r"(&sum) : "rax", "rcx", "rdx", "memory", "cc" : aborted);
		done++;
	aborted:;
	}
	*(uint64_t *)arg = done;
	return 0;
}

static int sequences(void) {
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	uint64_t a, b;
	pthread_t t, u;
	if (!__rseq_size) { printf("good: this system has none\n"); return 0; }
	printf("ready\n");
	pthread_create(&t, 0, ends, 0);
	pthread_create(&u, 0, adds, &a);
	adds(&b);
	pthread_join(u, 0);
	printf("%s %ld\n", sum == a + b ? "good" : "bad", (long)(sum - a - b));
	return 0;
}

/* keep: every page has a stamp at both its ends, and an account elsewhere has the stamps
 * of all pages. It shows pages that are older than the account, or half written. */
static uint64_t wrong(char *at, uint64_t *account, size_t pages, uint64_t sum) {
	uint64_t bad = 0, total = 0;
	for (size_t i = 0; i < pages; i++) {
		uint64_t *p = (uint64_t *)(at + i * PAGE);
		if (p[0] != account[i] || p[511] != account[i]) bad++;
		total += account[i];
	}
	return bad + (total != sum);
}

static int say(const char *file, uint64_t bad, uint64_t steps) {
	char line[128], fresh[300];
	snprintf(fresh, sizeof fresh, "%s.new", file);
	int f = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	int n = snprintf(line, sizeof line, "%s %lu %d\n", bad ? "bad" : "good", (unsigned long)steps, getpid());
	return write(f, line, n) != n || close(f) || rename(fresh, file);
}

static int keep(const char *file, size_t mib) {
	size_t pages = mib << 8;
	char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *account = mmap(0, pages * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t seed = mib, steps = 0, sum = 0;
	char other[256];
	pthread_t t;
	close_range(3, ~0U, 0);
	int nothing = open("/dev/null", O_RDWR);
	for (int i = 0; i < 3; i++) dup2(nothing, i);
	if (nothing > 2) close(nothing);
	if (chdir("/")) return 1;
	if (!fork()) { /* a second process */
		snprintf(other, sizeof other, "%s.child", file);
		file = other;
		seed++;
	}
	if (at == MAP_FAILED || account == MAP_FAILED) return 1;
	fill(at, pages * PAGE, mib);
	for (size_t i = 0; i < pages; i++) {
		uint64_t *p = (uint64_t *)(at + i * PAGE);
		p[0] = p[511] = account[i] = next(&seed);
		sum += account[i];
	}
	map(&slots[0], 64 * PAGE, 0);
	pthread_create(&t, 0, spin, &slots[0]);
	signal(SIGUSR1, on_usr);
	for (;; steps++) {
		uint64_t bad = 0;
		for (int n = 0; n < 20000; n++) {
			size_t i = next(&seed) % pages;
			uint64_t *p = (uint64_t *)(at + i * PAGE);
			if (p[0] != account[i] || p[511] != account[i]) bad++;
			sum -= account[i];
			p[0] = p[511] = account[i] = next(&seed);
			sum += account[i];
			if (usr) {
				usr = 0;
				if (!fork()) { /* its memory must be its parent's */
					snprintf(other, sizeof other, "%s.forked", file);
					_exit(say(other, wrong(at, account, pages, sum), 0));
				}
			}
		}
		bad += wrong(at, account, pages, sum);
		if (say(file, bad, steps) || bad) return 1;
		struct timespec d = {0, 2000000};
		nanosleep(&d, 0);
	}
}

int main(int c, char **v) {
	setvbuf(stdout, 0, _IOLBF, 0);
	if (c > 1 && !strcmp(v[1], "obey")) return obey(v[0]);
	if (c > 2 && !strcmp(v[1], "churn")) return churn(strtoull(v[2], 0, 0));
	if (c > 1 && !strcmp(v[1], "check")) return check();
	if (c > 1 && !strcmp(v[1], "sequences")) return sequences();
	if (c > 3 && !strcmp(v[1], "keep")) return keep(v[2], strtoul(v[3], 0, 0));
	fprintf(stderr, "see the beginning of subject.c\n");
	return 2;
}
