/* State that prevents a move, or lets it wait. Each case is moved alone. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

/* over waits like await_move and ends the process. */
static void over(void)
{
	while (!moved())
		usleep(10000);
	_exit(0);
}

static void packets(void)
{
	int fds[2];
	char c[10];

	MUST(pipe2(fds, O_DIRECT));
	MUST(write(fds[1], "ab", 2));
	MUST(write(fds[1], "c", 1));
	await_move();
	IS(read(fds[0], c, 10) == 2, "packets are mixed");
}

static void vforked(void)
{
	ready();
	if (!vfork())
		over();
	while (wait(0) > 0);
}

/* vforks repeatedly has a vfork child for a moment. */
static void vforks(void)
{
	ready();
	while (!moved()) {
		if (!vfork()) {
			usleep(30000);
			_exit(0);
		}
		while (wait(0) > 0);
		usleep(20000);
	}
}

static void *after(void *a)
{
	usleep(100000);
	ready();
	over();
	return 0;
}

static void first_gone(void)
{
	pthread_t t;

	pthread_create(&t, 0, after, 0);
	pthread_exit(0);
}

static void chrooted(void)
{
	int s;
	pid_t child;

	mkdir("/tmp/other", 0755);
	if (!(child = fork())) {
		MUST(chroot("/tmp/other"));
		MUST(chdir("/"));
		close(MUST(open("here", O_CREAT | O_WRONLY, 0600)));
		while (access("/go", F_OK))
			usleep(10000);
		_exit(access("/here", F_OK) != 0);
	}
	usleep(100000);
	await_move();
	close(open("/tmp/other/go", O_CREAT | O_WRONLY, 0600));
	waitpid(child, &s, 0);
	IS(s == 0, "status %x", s);
}

static void terminal(void) /* of a process with another root */
{
	int s, master = MUST(posix_openpt(O_RDWR | O_NOCTTY)), slave;
	char name[40];
	pid_t child;

	MUST(grantpt(master) | unlockpt(master) | ptsname_r(master, name, sizeof name));
	slave = MUST(open(name, O_RDWR | O_NOCTTY));
	mkdir("/tmp/third", 0755);
	if (!(child = fork())) {
		MUST(chroot("/tmp/third"));
		MUST(chdir("/"));
		while (access("/go", F_OK))
			usleep(10000);
		_exit(write(slave, "hello", 5) != 5);
	}
	usleep(100000);
	await_move();
	close(open("/tmp/third/go", O_CREAT | O_WRONLY, 0600));
	waitpid(child, &s, 0);
	IS(s == 0 && read(master, name, 5) == 5 && !memcmp(name, "hello", 5), "status %x", s);
}

/* fields reads the calling thread's credentials. */
static void fields(char *all)
{
	char line[300], path[60];
	FILE *f;

	sprintf(path, "/proc/self/task/%d/status", (int)syscall(SYS_gettid));
	f = fopen(path, "r");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, "Cap", 3) || !strncmp(line, "Uid", 3) || !strncmp(line, "Gid", 3) || !strncmp(line, "Groups", 6))
			strcat(all, line);
	fclose(f);
}

static volatile int settled;

static void *lesser(void *a)
{
	struct { unsigned version; int pid; } head = {0x20080522, 0};
	struct { unsigned effective, permitted, inheritable; } caps[2];
	char before[900] = "", after[900] = "";

	MUST(syscall(SYS_capget, &head, caps));
	caps[0].effective &= ~(1u << 5); /* CAP_KILL */
	if (a)
		caps[0].permitted &= ~(1u << 5);
	caps[0].inheritable |= 1; /* CAP_CHOWN */
	MUST(syscall(SYS_capset, &head, caps));
	MUST(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 0, 0, 0));
	MUST(syscall(SYS_setgroups, a ? 3 : 2, (unsigned[]){11, 12, 13}));
	MUST(syscall(SYS_setfsuid, a ? 5 : 6));
	fields(before);
	settled++;
	while (!moved())
		usleep(10000);
	fields(after);
	IS(!strcmp(before, after), "before %s after %s", before, after);
	return 0;
}

static void capabilities(void)
{
	pthread_t t[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], 0, lesser, i ? "" : 0);
	while (settled < 2)
		usleep(1000);
	await_move();
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], 0);
}

static void message_queue(void)
{
	struct { long flags, most, size, now, spare[4]; } a = {0, 4, 20};
	char text[20] = "";
	int q = MUST(syscall(SYS_mq_open, "queue", O_CREAT | O_RDWR, 0600, &a));

	MUST(syscall(SYS_mq_timedsend, q, "queued", 7, 3, 0));
	await_move();
	IS(syscall(SYS_mq_timedreceive, q, text, 20, 0, 0) == 7 && !strcmp(text, "queued"), "lost");
	syscall(SYS_mq_unlink, "queue");
}

static void queue_left(void) /* that no program has open */
{
	struct { long flags, most, size, now, spare[4]; } a = {0, 4, 20};
	int q = MUST(syscall(SYS_mq_open, "left", O_CREAT | O_RDWR, 0600, &a));

	close(q);
	await_move();
	IS((q = syscall(SYS_mq_open, "left", O_RDWR, 0, 0)) >= 0, "lost");
	syscall(SYS_mq_unlink, "left");
}

static void traced(void)
{
	int s;
	pid_t child = MUST(fork());

	if (!child) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(3);
	}
	waitpid(child, &s, 0);
	await_move();
	ptrace(PTRACE_CONT, child, 0, 0);
	waitpid(child, &s, 0);
	IS(WEXITSTATUS(s) == 3, "status %x", s);
}

static void *waiting(void *tid)
{
	*(int *)tid = syscall(SYS_gettid);
	over();
	return 0;
}

static void thread_handle(void)
{
	volatile int tid = 0;
	pthread_t t;

	pthread_create(&t, 0, waiting, (void *)&tid);
	while (!tid)
		usleep(1000);
	MUST(syscall(SYS_pidfd_open, tid, O_EXCL /* PIDFD_THREAD */));
	await_move();
}

static void listener(void) /* of calls that a filter sends to another process */
{
	struct { unsigned short c; unsigned char t, f; unsigned k; } p[] = {{6, 0, 0, 0x7fff0000}};
	struct { unsigned short n; void *f; } prog = {1, p};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	MUST(syscall(SYS_seccomp, 1, 8, &prog));
	await_move();
}

static int share(void *a) { over(); return 0; }

static void shared_memory(void) /* CLONE_VM without CLONE_THREAD or CLONE_VFORK */
{
	static char room[65536];
	pid_t child = MUST(clone(share, room + 60000, CLONE_VM | SIGCHLD, 0));

	await_move();
	waitpid(child, 0, 0);
}

static void shared_folder(void) /* CLONE_FS without CLONE_THREAD */
{
	static char room[65536];
	pid_t child = MUST(clone(share, room + 60000, CLONE_FS | SIGCHLD, 0));

	await_move();
	waitpid(child, 0, 0);
}

#define CASE(x) {#x, x}
static void first_thread_timer(void)
{
	struct itimerspec every = {{5, 0}, {5, 0}};
	struct sigevent e = {.sigev_notify = 4 /* SIGEV_THREAD_ID */, .sigev_signo = SIGUSR2};
	timer_t t;

	signal(SIGUSR2, SIG_IGN);
	e._sigev_un._tid = getpid();
	MUST(timer_create(CLOCK_MONOTONIC, &e, &t));
	MUST(timer_settime(t, 0, &every, 0));
	await_move();
}

static const struct state all[] = {CASE(packets), CASE(vforked), CASE(vforks), CASE(first_gone), CASE(chrooted), CASE(terminal), CASE(capabilities), CASE(message_queue), CASE(queue_left),
	CASE(traced), CASE(thread_handle), CASE(listener), CASE(shared_memory), CASE(shared_folder), CASE(first_thread_timer)};

int main(int argc, char **argv)
{
	(void)now;
	return run(argc, argv, all, sizeof all / sizeof *all);
}
