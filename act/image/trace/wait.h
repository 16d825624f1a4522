/* Ranks that wait sleep, in the library that is built with PAGURUS_WAITS.
 *
 * It makes sched_yield() wait for what the thread has last looked for with a poll() or
 * epoll_wait() of no duration, for PAGURUS_WAIT milliseconds at most: Open MPI, told to
 * yield, does both in turn while a rank waits. The rank then leaves its virtual CPU idle
 * and the real one to the guest it waits for. That is for guests that share cores, as
 * emulated ones do. Elsewhere it would cost latency, and so do these functions
 * themselves, since Open MPI polls all the time (docs/decisions/010). So the other library
 * leaves libc's own alone. A rank that only asks whether
 * something has come (MPI_Test) may have work to do: it waits for half of its time at most.
 *
 * A part of trace.c, whose calls it hears of by called(), ask() and heard().
 */
#ifndef PAGURUS_WAITS

static inline void called(void) {}
static inline bool ask(void) { return false; }
static inline void heard(bool nothing) { (void)nothing; }

#else

/* What the thread looked for last; more than fits is not waited for. */
#define LOOKED 256
static THREAD struct pollfd looked[LOOKED];
static THREAD nfds_t lookedFor;

/*
 * How often the thread has yielded in this call since something came. Open MPI also
 * yields on its way through calls that do not wait, with a message in hand to be
 * sent: only who has yielded in vain this often waits.
 */
#define VAIN_MOST 4
static THREAD int vain;

/*
 * Who asks (MPI_Test, MPI_Iprobe) may have work to do between its questions, and that
 * may take next to no time. It waits only once nothing has come for ASKED_NS in which
 * more than half of its time went into asking, and then for as long as it goes on
 * asking: what it does takes about twice as long at most, and others have half of its
 * processor.
 */
#define ASKED_NS 10000000
#define ASKED_MS 1
static THREAD bool asking, idle;
static THREAD int64_t row;      /* CLOCK_MONOTONIC: since when it asks in vain, or does since it last waited; 0: it does not */
static THREAD int64_t answered; /* when its last question was */
static THREAD int64_t apart;    /* ns between its questions since row, in all */

/* arrived is called when there is something on what was polled. */
static inline void arrived(void) { vain = 0, row = 0; }

/* called comes before a call of MPI and after it. */
static inline void called(void) { vain = 0; }

/*
 * Something that is always ready but that the program does not take would keep
 * a yield from ever waiting: after so many in a row it sleeps this long.
 */
#define READY_MOST 16
#define READY_NS 100000

static int longest(void) /* wait in a yield, ms; 0: none */
{
	static _Atomic int ms = -1;
	int known = ms;
	if (known < 0) {
		const char *s = getenv("PAGURUS_WAIT");
		ms = known = s && atoi(s) > 0 ? atoi(s) : 0;
	}
	return known;
}

static int pollFor(struct pollfd *fds, nfds_t n, int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	return syscall(SYS_ppoll, fds, n, ms < 0 ? NULL : &t, NULL, (size_t)0);
}

int poll(struct pollfd *fds, nfds_t n, int ms)
{
	if (ms == 0 && longest() > 0) {
		lookedFor = n <= LOOKED ? n : 0;
		memcpy(looked, fds, lookedFor * sizeof *fds);
	}
	int ready = pollFor(fds, n, ms);
	if (ready > 0)
		arrived();
	return ready;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
	if (ms == 0 && longest() > 0) {
		looked[0] = (struct pollfd){.fd = fd, .events = POLLIN};
		lookedFor = 1;
	}
	int ready = syscall(SYS_epoll_pwait, fd, events, most, ms, NULL, (size_t)0);
	if (ready > 0)
		arrived();
	return ready;
}

static void rest(int ms)
{
	static THREAD int ready;

	if (lookedFor == 0)
		pollFor(NULL, 0, 1); /* nothing to be woken by: not for long */
	else if (pollFor(looked, lookedFor, ms) <= 0)
		ready = 0;
	else if (++ready > READY_MOST)
		nanosleep(&(struct timespec){.tv_nsec = READY_NS}, NULL);
}

int sched_yield(void)
{
	int ms = longest();

	if (ms == 0 || (!asking && vain++ < VAIN_MOST))
		return syscall(SYS_sched_yield);
	if (!asking) {
		rest(ms);
		return 0;
	}
	int64_t t = now();
	if (!row || t - row < (idle ? ASKED_MS * 1000000 : ASKED_NS))
		return syscall(SYS_sched_yield);
	idle = apart < (t - row) / 2;
	if (idle) {
		rest(ASKED_MS);
		t = now();
	}
	row = t, apart = 0;
	return 0;
}

/* ask comes before a question, heard after it if ask has said so: not of one that is asked by another. */
static inline bool ask(void)
{
	if (asking || longest() == 0)
		return false;
	int64_t t = now();
	if (!row)
		row = t, apart = 0;
	else
		apart += t - answered;
	return asking = true;
}

static inline void heard(bool nothing)
{
	asking = false;
	answered = now();
	if (!nothing)
		row = 0;
}

#endif
