/* Time: system calls that wait, timers, and clocks. */
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/select.h>
#include <sys/timerfd.h>

enum { SPAN = 6 }; /* seconds: longer than both moves */

enum { SOON = 5, AGAIN = 1000 }; /* AGAIN: its time may start again with each move */

/* since_go is the time from begun to the end of the last move, if it is over. */
static double since_go(double begun)
{
	struct stat st;

	if (stat("go", &st))
		return AGAIN;
	if (st.st_mtim.tv_sec + st.st_mtim.tv_nsec * 1e-9 < begun)
		return 0;
	return st.st_mtim.tv_sec + st.st_mtim.tv_nsec * 1e-9 - begun;
}

/* Waits repeatedly until the program was moved. Each wait must take its full time and return
   only the expected error. late is the allowed delay. */
static void waits(int (*wait)(void), int error, double late)
{
	int first = 1;

	do {
		double begun = now(CLOCK_MONOTONIC), wall = now(CLOCK_REALTIME), took;
		int got;

		if (first)
			ready();
		first = 0;
		errno = 0;
		got = wait();
		if (got < 0 && error == 0)
			IS(0, "it failed");
		if (error)
			IS(got < 0 && errno == error, "it gave %d", got);
		took = now(CLOCK_MONOTONIC) - begun;
		IS(took >= SPAN, "it took only %.3f s", took);
		if (late == AGAIN)
			IS(took < since_go(wall) + SPAN + 1, "it took %.3f s", took);
		else
			IS(took < SPAN + late, "it took %.3f s", took);
	} while (!moved() && !bad);
}

static const struct timespec span = {SPAN, 0};

static int by_nanosleep(void) { return nanosleep(&span, 0); }
static int by_sleep(void) { return sleep(SPAN) ? -1 : 0; }
static int by_clock(void) { return clock_nanosleep(CLOCK_MONOTONIC, 0, &span, 0) ? -1 : 0; }
static int by_poll(void) { return poll(0, 0, SPAN * 1000); }
static int by_futex(void) { static int word; return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &span, 0, 0); }
static int by_select(void) { struct timeval t = {SPAN, 0}; return select(0, 0, 0, 0, &t); }
static int by_pselect(void) { return pselect(0, 0, 0, 0, &span, 0); }
static int by_ppoll(void) { return ppoll(0, 0, &span, 0); }

static int by_absolute(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += SPAN;
	return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) ? -1 : 0;
}

static int by_epoll(void)
{
	static int e;
	struct epoll_event got;

	if (!e)
		e = MUST(epoll_create1(0));
	return epoll_wait(e, &got, 1, SPAN * 1000);
}

static int by_signal(void)
{
	sigset_t s;

	sigemptyset(&s);
	sigaddset(&s, SIGUSR1);
	MUST(sigprocmask(SIG_BLOCK, &s, 0));
	return sigtimedwait(&s, 0, &span);
}

static int by_semaphore(void)
{
	static int id = -1;
	struct sembuf down = {0, -1, 0};

	if (id < 0)
		id = MUST(semget(IPC_PRIVATE, 1, 0600));
	return semtimedop(id, &down, 1, &span);
}

static int by_receive(void)
{
	static int p[2];
	struct timeval t = {SPAN, 0};
	char byte;

	if (!p[1]) {
		MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
		MUST(setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
	}
	return recv(p[0], &byte, 1, 0);
}

/* by_queue, by_pause and by_accept wait for an event that comes after the full time. */
static void on_alarm(int s) { (void)s; }

static int by_queue(void)
{
	struct { long kind; char text[8]; } got;
	static int q = -1;
	pid_t sender;
	int n;

	if (q < 0)
		q = MUST(msgget(IPC_PRIVATE, 0600));
	if (!(sender = MUST(fork()))) {
		double begun = now(CLOCK_MONOTONIC);

		while (now(CLOCK_MONOTONIC) - begun < SPAN)
			usleep(10000);
		msgsnd(q, &(struct { long kind; char text[8]; }){1, "x"}, 2, 0);
		_exit(0);
	}
	n = msgrcv(q, &got, sizeof got.text, 0, 0);
	waitpid(sender, 0, 0);
	return n;
}

static int by_pause(void)
{
	signal(SIGALRM, on_alarm);
	alarm(SPAN + 1); /* counted in whole seconds */
	return pause();
}

static int by_accept(void)
{
	struct timeval t = {SPAN, 0};
	static int s = -1;

	if (s < 0) {
		s = MUST(socket(AF_INET, SOCK_STREAM, 0));
		MUST(listen(s, 1));
		MUST(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
	}
	return accept(s, 0, 0);
}

static void queues(void) { waits(by_queue, 0, SOON); }
static void pauses(void) { waits(by_pause, EINTR, SOON); }
static void accepts(void) { waits(by_accept, EAGAIN, AGAIN); }
static void nanosleeps(void) { waits(by_nanosleep, 0, AGAIN); }
static void sleeps(void) { waits(by_sleep, 0, SOON); }
static void clock_nanosleeps(void) { waits(by_clock, 0, AGAIN); }
static void absolute_sleeps(void) { waits(by_absolute, 0, SOON); }
static void polls(void) { waits(by_poll, 0, AGAIN); }
static void epolls(void) { waits(by_epoll, 0, AGAIN); }
static void futexes(void) { waits(by_futex, ETIMEDOUT, AGAIN); }
static void selects(void) { waits(by_select, 0, AGAIN); }
static void pselects(void) { waits(by_pselect, 0, AGAIN); }
static void ppolls(void) { waits(by_ppoll, 0, AGAIN); }
static void signals(void) { waits(by_signal, EAGAIN, AGAIN); }
static void semaphores(void) { waits(by_semaphore, EAGAIN, AGAIN); }
static void receives(void) { waits(by_receive, EAGAIN, AGAIN); }

/* A read that only an event ends. */
static void watches(void)
{
	int fd = MUST(inotify_init1(0));
	char text[500];
	pid_t child;

	mkdir("watched", 0755);
	MUST(inotify_add_watch(fd, "watched", IN_CREATE));
	child = MUST(fork());
	if (!child) {
		ready();
		while (!moved())
			usleep(20000);
		close(open("watched/file", O_CREAT | O_WRONLY, 0644));
		_exit(0);
	}
	errno = 0;
	IS(read(fd, text, sizeof text) > 0, "the read failed");
	waitpid(child, 0, 0);
}

/* timer expires before the move, is read only afterwards, and goes on. */
static void timer(int clock, long period_ms, uint64_t least)
{
	int fd = MUST(timerfd_create(clock, TFD_NONBLOCK));
	struct itimerspec t = {{period_ms / 1000, period_ms % 1000 * 1000000}, {0, 100000000}};
	uint64_t n = 0;
	struct pollfd p = {fd, POLLIN, 0};

	MUST(timerfd_settime(fd, 0, &t, 0));
	usleep(150000);
	await_move();
	IS(read(fd, &n, sizeof n) == sizeof n && n >= least, "it has expired %lu times, not %lu", (long)n, (long)least);
	if (!period_ms) {
		IS(read(fd, &n, sizeof n) < 0 && errno == EAGAIN, "it expired again");
		return;
	}
	IS(poll(&p, 1, period_ms + 1000) == 1, "it does not expire again");
	MUST(timerfd_gettime(fd, &t));
	IS(t.it_interval.tv_sec * 1000 + t.it_interval.tv_nsec / 1000000 == period_ms, "its period has changed");
}

static void timerfd_periodic(void) { timer(CLOCK_MONOTONIC, 300, 2); }
static void timerfd_slow(void) { timer(CLOCK_MONOTONIC, 20000, 1); }
static void timerfd_fast(void) { timer(CLOCK_MONOTONIC, 1, 100); }
static void timerfd_realtime(void) { timer(CLOCK_REALTIME, 300, 2); }
static void timerfd_boottime(void) { timer(CLOCK_BOOTTIME, 300, 2); }
static void timerfd_once(void) { timer(CLOCK_MONOTONIC, 0, 1); }

static char state_of(pid_t p)
{
	char file[50], text[400] = "";
	int fd;

	snprintf(file, sizeof file, "/proc/%d/stat", p);
	fd = open(file, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
		return '?';
	close(fd);
	return strrchr(text, ')')[2];
}

static void stopped_by(int signal)
{
	volatile long *n = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t p = MUST(fork());
	long before;
	int status;

	if (!p)
		for (;;) {
			(*n)++;
			usleep(1000);
		}
	setpgid(p, p); /* in a group without a parent outside it SIGTSTP would do nothing */
	usleep(50000);
	kill(p, signal);
	MUST(waitpid(p, &status, WUNTRACED));
	before = *n;
	await_move();
	IS(state_of(p) == 'T', "the child is in state %c", state_of(p));
	IS(*n == before, "the child has run");
	kill(p, SIGCONT);
	IS(waitpid(p, &status, WCONTINUED) == p && WIFCONTINUED(status), "it is not continued: status %x", status);
	usleep(200000);
	IS(*n > before, "the child does not go on");
	kill(p, SIGKILL);
	IS(waitpid(p, &status, 0) == p && WIFSIGNALED(status), "it does not end: status %x", status);
}

static void stopped(void) { stopped_by(SIGSTOP); }
static void stopped_tty(void) { stopped_by(SIGTSTP); }

/* CPU clocks start again after a move, as the table says. Wall clocks do not. */
static void processor_time(void)
{
	double wall = now(CLOCK_MONOTONIC), boot = now(CLOCK_BOOTTIME), used;

	while ((used = now(CLOCK_PROCESS_CPUTIME_ID)) < 0.5)
		;
	await_move();
	IS(now(CLOCK_PROCESS_CPUTIME_ID) < used, "processor time goes on: the table is wrong");
	IS(now(CLOCK_MONOTONIC) > wall && now(CLOCK_MONOTONIC) < wall + 60, "CLOCK_MONOTONIC has jumped");
	IS(now(CLOCK_BOOTTIME) > boot && now(CLOCK_BOOTTIME) < boot + 60, "CLOCK_BOOTTIME has jumped");
}

static volatile sig_atomic_t rung;
static void rings(int s) { (void)s; rung++; }

/* Timers that send signals go on. */
static void signal_timers(void)
{
	struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec t = {{0, 20000000}, {0, 20000000}};
	timer_t id;

	signal(SIGUSR1, rings);
	MUST(timer_create(CLOCK_MONOTONIC, &e, &id));
	MUST(timer_settime(id, 0, &t, 0));
	await_move();
	rung = 0;
	for (double end = now(CLOCK_MONOTONIC) + 1; now(CLOCK_MONOTONIC) < end;)
		;
	IS(rung > 10, "the POSIX timer rang %d times", (int)rung);
}

static volatile int by[3];
static void counts(int s) { by[s == SIGUSR2 ? 0 : s == SIGPROF ? 1 : 2]++; }

/* CPU time timers go on expiring. */
static void processor_timers(void)
{
	struct itimerspec every = {{0, 10000000}, {0, 10000000}};
	struct itimerval often = {{0, 10000}, {0, 10000}};
	struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
	timer_t t;

	signal(SIGUSR2, counts);
	signal(SIGPROF, counts);
	signal(SIGVTALRM, counts);
	MUST(timer_create(CLOCK_PROCESS_CPUTIME_ID, &e, &t));
	MUST(timer_settime(t, 0, &every, 0));
	MUST(setitimer(ITIMER_PROF, &often, 0));
	MUST(setitimer(ITIMER_VIRTUAL, &often, 0));
	await_move();
	for (int i = 0; i < 3; i++)
		by[i] = 0;
	for (double begun = now(CLOCK_MONOTONIC); now(CLOCK_MONOTONIC) - begun < 10 && (by[0] < 3 || by[1] < 3 || by[2] < 3);)
		;
	IS(by[0] >= 3, "the timer of the processor's time rang %d times", by[0]);
	IS(by[1] >= 3, "ITIMER_PROF rang %d times", by[1]);
	IS(by[2] >= 3, "ITIMER_VIRTUAL rang %d times", by[2]);
}

/* A timer that signals one thread goes on signalling it. */
static void *tell_me(void *unused)
{
	struct itimerspec every = {{0, 20000000}, {0, 20000000}};
	struct sigevent e = {.sigev_notify = 4 /* SIGEV_THREAD_ID */, .sigev_signo = SIGUSR2};
	timer_t t;

	(void)unused;
	signal(SIGUSR2, rings);
	e._sigev_un._tid = syscall(SYS_gettid);
	MUST(timer_create(CLOCK_MONOTONIC, &e, &t));
	MUST(timer_settime(t, 0, &every, 0));
	await_move();
	rung = 0;
	for (double begun = now(CLOCK_MONOTONIC); now(CLOCK_MONOTONIC) - begun < 10 && rung < 3;)
		usleep(1000);
	IS(rung >= 3, "the timer of a thread rang %d times", rung);
	return 0;
}

static void thread_timer(void)
{
	pthread_t other;

	if (pthread_create(&other, 0, tell_me, 0) || pthread_join(other, 0))
		IS(0, "no thread");
}

static void interval_timer(void)
{
	struct itimerval v = {{0, 20000}, {0, 20000}};

	signal(SIGALRM, rings);
	MUST(setitimer(ITIMER_REAL, &v, 0));
	await_move();
	rung = 0;
	for (double end = now(CLOCK_MONOTONIC) + 1; now(CLOCK_MONOTONIC) < end;)
		;
	IS(rung > 10, "it rang %d times", (int)rung);
}

static const struct state all[] = {
	{"processor_time", processor_time}, {"signal_timers", signal_timers}, {"interval_timer", interval_timer},
	{"nanosleeps", nanosleeps}, {"sleeps", sleeps}, {"clock_nanosleeps", clock_nanosleeps}, {"absolute_sleeps", absolute_sleeps},
	{"polls", polls}, {"epolls", epolls}, {"futexes", futexes}, {"selects", selects}, {"pselects", pselects}, {"ppolls", ppolls},
	{"signals", signals}, {"semaphores", semaphores}, {"receives", receives}, {"watches", watches},
	{"timerfd_periodic", timerfd_periodic}, {"timerfd_slow", timerfd_slow}, {"timerfd_fast", timerfd_fast},
	{"timerfd_realtime", timerfd_realtime}, {"timerfd_boottime", timerfd_boottime}, {"timerfd_once", timerfd_once},
	{"queues", queues}, {"pauses", pauses}, {"accepts", accepts}, {"processor_timers", processor_timers}, {"thread_timer", thread_timer},
	{"stopped", stopped}, {"stopped_tty", stopped_tty},
};
MAIN(all)
