/* A program with one of each kind of state that a move must carry. It sets them up, prints
   "ready", waits for /tmp/go, and prints "ok" or what has changed. Meanwhile a child forks
   endlessly. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(x) ({ long r_ = (long)(x); if (r_ < 0) { perror(#x); exit(1); } r_; })

static int bad;
static void is(int right, const char *what)
{
	if (!right) {
		printf("%s is not as it was (%s)\n", what, strerror(errno));
		bad = 1;
	}
}

/* holds reads exactly the expected text. */
static void holds(int fd, const char *want, const char *what)
{
	char got[64] = "";
	ssize_t n = read(fd, got, sizeof got - 1);

	is(n == (ssize_t)strlen(want) && !strcmp(got, want), what);
}

static volatile sig_atomic_t rung;
static void on_alarm(int s) { (void)s; rung = 1; }
static volatile sig_atomic_t told;
static void on_signal(int s, siginfo_t *i, void *c) { (void)s, (void)c; told = i->si_value.sival_int; }

/* locked reports whether another process is refused a lock. */
static int locked(const char *path, int posix)
{
	pid_t p = MUST(fork());
	int status;

	if (!p) {
		struct flock l = {.l_type = F_WRLCK};
		int fd = open(path, O_RDWR);
		_exit(fd >= 0 && (posix ? fcntl(fd, F_SETLK, &l) : flock(fd, LOCK_EX | LOCK_NB)) < 0 && (errno == EAGAIN || errno == EACCES));
	}
	return waitpid(p, &status, 0) == p && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

int main(void)
{
	/* Memory that processes share, and files without a name. */
	int *counts = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int segment = MUST(shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600));
	char *shm = shmat(segment, 0, 0);
	strcpy(shm, "segment");
	int memfd = MUST(memfd_create("mine", 0));
	MUST(pwrite(memfd, "memfd", 5, 0));
	int ghost = MUST(open("/tmp/ghost", O_RDWR | O_CREAT, 0600));
	MUST(pwrite(ghost, "ghost", 5, 0)), MUST(unlink("/tmp/ghost"));

	/* Data under way between descriptors. */
	int tube[2], pair[2], master, slave;
	MUST(pipe(tube)), MUST(write(tube[1], "pipe", 4));
	MUST(mkfifo("/tmp/openfifo", 0600));
	int fifo = MUST(open("/tmp/openfifo", O_RDWR));
	MUST(write(fifo, "fifo", 4));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair)), MUST(write(pair[1], "pair", 4));
	int event = MUST(eventfd(7, 0)), poller = MUST(epoll_create1(0)), timer = MUST(timerfd_create(CLOCK_MONOTONIC, 0));
	struct epoll_event e = {.events = EPOLLIN, .data.u32 = 5};
	MUST(epoll_ctl(poller, EPOLL_CTL_ADD, tube[0], &e));
	struct itimerspec soon = {.it_value.tv_sec = 5};
	MUST(timerfd_settime(timer, 0, &soon, 0));

	/* A session of its own with a terminal, whose program reads a line from it. */
	MUST(openpty(&master, &slave, 0, 0, 0));
	pid_t session = MUST(fork());
	if (!session) {
		char line[16] = "";
		close(master);
		MUST(setsid()), MUST(ioctl(slave, TIOCSCTTY, 0));
		_exit(read(slave, line, sizeof line) == 6 && !strcmp(line, "typed\n") && tcgetsid(slave) == getpid() ? 3 : 4);
	}

	/* A process group, a child that was not waited for, and one that forks. */
	pid_t group = 0, members[3];
	for (int i = 0; i < 3; i++) {
		members[i] = MUST(fork());
		if (!members[i])
			for (;;)
				pause();
		MUST(setpgid(members[i], group));
		group = group ? group : members[i];
	}
	pid_t zombie = MUST(fork());
	if (!zombie)
		_exit(7);
	pid_t forks = MUST(fork());
	if (!forks)
		for (;;) {
			pid_t p = fork();
			if (!p)
				_exit(0);
			counts[0] += waitpid(p, 0, 0) == p;
		}

	/* Locks, a timer, a pending signal. */
	struct flock l = {.l_type = F_WRLCK};
	int posix = MUST(open("/tmp/posix", O_RDWR | O_CREAT, 0600)), whole = MUST(open("/tmp/whole", O_RDWR | O_CREAT, 0600));
	MUST(fcntl(posix, F_SETLK, &l)), MUST(flock(whole, LOCK_EX));
	timer_t rings;
	signal(SIGALRM, on_alarm);
	MUST(timer_create(CLOCK_MONOTONIC, 0, &rings)), MUST(timer_settime(rings, 0, &soon, 0));
	sigset_t blocked;
	sigemptyset(&blocked), sigaddset(&blocked, SIGRTMIN), sigprocmask(SIG_BLOCK, &blocked, 0);
	struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
	sigaction(SIGRTMIN, &a, 0);
	MUST(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 42}));
	MUST(setpriority(PRIO_PROCESS, 0, 3)), umask(027);

	puts("ready"), fflush(stdout);
	while (access("/tmp/go", F_OK) < 0 || !rung)
		usleep(20000);

	char text[16] = "";
	int status, before = counts[0];
	is(!strcmp(shm, "segment"), "System V memory");
	is(pread(memfd, text, 5, 0) == 5 && !memcmp(text, "memfd", 5), "a memfd");
	is(pread(ghost, text, 5, 0) == 5 && !memcmp(text, "ghost", 5), "a file without a name");
	is(epoll_wait(poller, &e, 1, 0) == 1 && e.data.u32 == 5, "an epoll");
	holds(tube[0], "pipe", "a pipe"), holds(fifo, "fifo", "an open fifo"), holds(pair[0], "pair", "a socket pair");
	uint64_t n = 0;
	is(read(event, &n, 8) == 8 && n == 7, "an eventfd");
	is(read(timer, &n, 8) == 8 && n == 1, "a timerfd");
	is(write(master, "typed\n", 6) == 6 && waitpid(session, &status, 0) == session && WIFEXITED(status) && WEXITSTATUS(status) == 3, "a terminal");
	is(waitpid(zombie, &status, WNOHANG) == zombie && WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child that has ended");
	for (int i = 0; i < 3; i++)
		is(getpgid(members[i]) == group, "a group of processes");
	is(!kill(-group, SIGTERM), "the way to a group");
	for (int i = 0; i < 3; i++)
		is(waitpid(members[i], &status, 0) == members[i] && WIFSIGNALED(status), "a member of a group");
	is(locked("/tmp/posix", 1), "a lock"), is(locked("/tmp/whole", 0), "a lock of a whole file");
	sigprocmask(SIG_UNBLOCK, &blocked, 0);
	is(told == 42, "a signal that waited");
	is(getpriority(PRIO_PROCESS, 0) == 3 && umask(0) == 027, "priority or umask");
	usleep(200000);
	is(counts[0] > before, "a child that forks");
	kill(forks, SIGKILL), waitpid(forks, 0, 0);
	shmctl(segment, IPC_RMID, 0);
	puts(bad ? "not ok" : "ok");
	return bad;
}
