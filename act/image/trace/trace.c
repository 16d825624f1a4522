/*
 * libpagurus-trace: what one rank does with MPI, and when it got nowhere.
 *
 * Preloaded into the ranks of a traced job (LD_PRELOAD), it stands between
 * the program and the MPI library by the standard's profiling interface, and
 * takes the time on entering and leaving every call that communicates. In
 * /dev/shm/pagurus-trace.RANK.PID, a shared mapping that the guest agent reads
 * at any time, also after the program has ended, each rank keeps
 *
 *   - how many calls of each class it has made and how long they took;
 *   - messages and bytes to every other rank, from the datatypes. What is sent
 *     from rank to rank is counted where it is sent. What a rank hands to
 *     collective calls is counted, too, but to nobody in particular: the MPI
 *     library decides which way it goes. Communicators and groups are followed:
 *     a rank is always that in MPI_COMM_WORLD;
 *   - in which of its calls it was when: what part of each of 256 equally long
 *     times since MPI_Init, and the 64 newest calls each by itself;
 *   - its gaps. A gap is the time inside one call, or between two. Kept are the
 *     64 longest, the longest of both kinds in each of the last 256 seconds,
 *     and a histogram of all;
 *   - what the system did in a gap of 10 ms or more: whether TCP of this guest
 *     ran into time-outs or held acknowledgements back, whether the rank had a CPU,
 *     whether the CPUs did.
 *     For that it looks at counters when such a gap has ended, and once a second
 *     while calls are made, so that there is something to compare with. It
 *     never wakes anybody up for it.
 *
 * The file is no larger than the number of ranks makes it, at most 125 KiB. The
 * price is two clock readings a call and some additions, less for calls that poll:
 * docs/decisions has the figures.
 *
 * Not counted to a peer: one-sided communication, what persistent sends beyond
 * the first 1024 at once send, and messages to processes outside of
 * MPI_COMM_WORLD, or to ranks beyond the first 4096, which are one sum.
 *
 * Fortran: mpi_*_ of MPICH call the C functions, those of Open MPI call PMPI_*
 * directly, so the common ones are wrapped here, too; a nested call is counted
 * once. Programs that use the module mpi_f08 with Open MPI are not seen: their
 * ranks leave no file.
 *
 * Built with PAGURUS_WAITS, as a library of its own, it also has ranks that wait
 * sleep: see wait.h.
 *
 * It never prints, never fails a call, and does nothing where /dev/shm does
 * not work. It must not know who reads the file.
 *
 * It is loaded into every program of the job, shells too. So it does not bring the MPI
 * library and the thirty others that this needs: of a program that has one it finds the
 * functions when they are called.
 *
 * Built inside the image, with the image's MPI, for Open MPI and MPICH alike:
 *   mpicc -O2 -fPIC -shared -Wall -Wl,--as-needed -o /usr/lib/pagurus/libpagurus-trace.so trace.c -ldl
 *   mpicc -DPAGURUS_WAITS … -o /usr/lib/pagurus/libpagurus-wait.so trace.c -ldl
 *
 * Tested by cmd/pagurus-guest in real guests.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <mpi.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LIBRARIES 8
struct libraries { int n; char *name[LIBRARIES]; };

/* isMPI lists a library if its name is one of MPI's. */
static int isMPI(struct dl_phdr_info *in, size_t size, void *list)
{
	struct libraries *l = list;
	const char *base = strrchr(in->dlpi_name, '/');

	(void)size;
	if (base && strncmp(base, "/libmpi", 7) == 0 && l->n < LIBRARIES && (l->name[l->n] = strdup(in->dlpi_name)))
		l->n++;
	return 0;
}

/* theirs finds what the program's MPI library has by a name. */
static void *theirs(const char *name)
{
	void *at = dlsym(RTLD_DEFAULT, name);
	struct libraries l = {0};

	if (at)
		return at;
	/* An interpreter's extension has brought the library for itself alone: it becomes visible to all. */
	dl_iterate_phdr(isMPI, &l);
	while (l.n > 0) {
		dlopen(l.name[--l.n], RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
		free(l.name[l.n]);
	}
	return dlsym(RTLD_DEFAULT, name);
}

#define THEIRS(function)                                    \
	(*({                                                \
		static __typeof__(function) *at;            \
		if (!at)                                    \
			at = (__typeof__(at))theirs(#function); \
		at;                                         \
	}))

/* Open MPI's constants are addresses in its library. */
#ifdef OMPI_PREDEFINED_GLOBAL
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) ({ static void *is; (type)(is ? is : (is = theirs(#global))); })
#endif
#ifndef MPI_Comm_f2c /* a function, not a macro as in older MPICH */
#define MPI_Comm_f2c THEIRS(PMPI_Comm_f2c)
#define MPI_Type_f2c THEIRS(PMPI_Type_f2c)
#define MPI_Request_f2c THEIRS(PMPI_Request_f2c)
#endif

/*
 * The file. The guest agent (act/ranks) reads the same layout;
 * whoever changes it raises VERSION in both.
 */
#define VERSION 3
#define LONGEST 64   /* gaps of all times */
#define SECONDS 256  /* for which the longest gaps are kept */
#define SPANS 256    /* equally long times, from MPI_Init to now */
#define NEWEST 64    /* calls that are kept each by itself */
#define PEERS 4096   /* ranks that are counted each by itself */

enum class { SENDRECV, COLLECTIVE, WAIT, OTHER, CLASSES };

/* why is what the system did in a time that ended with the gap. */
struct why {
	int64_t over;      /* ns that ran, delay, stolen and the counts of TCP are of; 0: nobody looked */
	int64_t delay;     /* ns that the thread could have run but another one did */
	int64_t stolen;    /* ns that the host took from the guest's CPUs */
	int64_t over_ran;  /* ns that ran and sleeps are of */
	int64_t ran;       /* ns that the thread ran */
	uint32_t sleeps;   /* times that the thread went to sleep by itself */
	uint32_t timeouts; /* TCP of the whole guest: retransmission time-outs, */
	uint32_t probes;   /* tail loss probes, */
	uint32_t resent;   /* segments sent again for whatever reason, */
	uint32_t delayed;  /* acknowledgements that were held back until their time was over */
	uint32_t unused;
};

struct gap {
	int64_t start; /* CLOCK_REALTIME, ns; 0: there is none */
	int64_t took;  /* ns, CLOCK_MONOTONIC */
	uint32_t inside; /* of a call; otherwise between two */
	uint32_t class;  /* of that call */
	struct why why;
};

struct call {
	_Atomic int64_t start; /* CLOCK_MONOTONIC, ns; 0: there is none, or it is being written */
	int64_t took;          /* ns */
	uint32_t class;
	uint32_t unused;
};

struct count {
	_Atomic uint64_t n;
	_Atomic uint64_t sum; /* bytes or ns */
};

struct file {
	char magic[8];
	uint32_t version;
	_Atomic uint32_t seq; /* odd while gaps are being changed */
	int32_t rank;
	int32_t ranks; /* of MPI_COMM_WORLD */
	uint32_t peers; /* cells at the end */
	int32_t pid;
	int64_t begun; /* CLOCK_REALTIME, ns */
	int64_t began; /* CLOCK_MONOTONIC, ns */
	_Atomic int64_t last; /* CLOCK_MONOTONIC: when a call was last entered or left */
	_Atomic uint32_t inside; /* 1 + the class of the call it is in; 0: none */
	_Atomic uint32_t ended;  /* MPI_Finalize was left, at last */
	struct count outside;    /* gaps between calls */
	struct count calls[CLASSES];
	struct count collected;  /* handed to collective calls */
	struct count elsewhere;  /* sent to who has no cell */
	uint32_t count; /* of longest that are valid */
	_Atomic uint32_t shift; /* a span is 2 to the power of this long, ns */
	_Atomic uint64_t histogram[2][64]; /* [inside][floor(log2(ns))] */
	struct gap longest[LONGEST];
	struct gap recent[SECONDS][2]; /* of the second it ended in, modulo SECONDS */
	_Atomic uint64_t spans[SPANS][CLASSES]; /* ns inside of calls, in each since began */
	struct call newest[NEWEST];
	_Atomic uint64_t made; /* calls that were kept; the last is newest[(made - 1) % NEWEST] */
	struct count sent[];
};

_Static_assert(sizeof(struct why) == 64, "layout");
_Static_assert(sizeof(struct gap) == 88, "layout");
_Static_assert(sizeof(struct call) == 24, "layout");
_Static_assert(offsetof(struct file, outside) == 64, "layout");
_Static_assert(offsetof(struct file, count) == 176, "layout");
_Static_assert(offsetof(struct file, histogram) == 184, "layout");
_Static_assert(offsetof(struct file, longest) == 1208, "layout");
_Static_assert(offsetof(struct file, recent) == 6840, "layout");
_Static_assert(offsetof(struct file, spans) == 51896, "layout");
_Static_assert(offsetof(struct file, newest) == 60088, "layout");
_Static_assert(offsetof(struct file, made) == 61624, "layout");
_Static_assert(offsetof(struct file, sent) == 61632, "layout");

/* A library that is there from the start can have its threads' own at a fixed place, without asking for it each time. */
#define THREAD __thread __attribute__((tls_model("initial-exec")))

static struct file *file; /* NULL: not tracing */
static bool many;         /* threads may make calls at the same time */
static atomic_flag changing = ATOMIC_FLAG_INIT;
static _Atomic int64_t least;   /* gaps up to this are not among the longest */
static _Atomic int64_t most[2]; /* gaps up to this are not the longest of their second and kind */
static _Atomic int64_t due;     /* CLOCK_MONOTONIC: when to look at the thread's times again, or at the clock */
static int64_t second;          /* the one that most is of */
static THREAD int depth;
static THREAD int64_t entered;
static THREAD enum class entering;

/* Of polls that find nothing: see skip. */
static THREAD int room;      /* polls that the clock need not be read for */
static THREAD int skipped;   /* polls that it was not read for */
static THREAD int64_t since; /* when it was, leaving a poll in vain, if no other call came after; or 0 */
static THREAD int64_t tick;  /* the coarse clock then */
static THREAD int64_t each;  /* ns from poll to poll, when that was last known */
static THREAD enum class polling; /* the class of the last one */

static int64_t clockOf(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now(void) { return clockOf(CLOCK_MONOTONIC); }

#include "wait.h"

/* add counts exactly also where threads make calls at the same time, and where they do not it costs nothing. */
static inline void add(_Atomic uint64_t *to, uint64_t n)
{
	if (many)
		atomic_fetch_add_explicit(to, n, memory_order_relaxed);
	else
		atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline void addTo(struct count *c, uint64_t sum)
{
	add(&c->n, 1);
	add(&c->sum, sum);
}

/*
 * What the system says. Reading it all takes 50 to 300 us, so that is done when a
 * gap asks for it and at most once a second otherwise; the thread's own times
 * are one system call, and are read every 20 ms in which calls are made.
 */
#define NOTABLE 10000000   /* ns: gaps from here on are explained */
#define OWN_EVERY 20000000 /* ns */
#define SYSTEM_EVERY 1000000000

struct system { int64_t at, delay, stolen; uint64_t timeouts, probes, resent, delayed; };
struct own { int64_t at, ran; uint64_t sleeps; };
static THREAD struct system systemBefore;
static THREAD struct own ownBefore;

static size_t readAll(const char *path, char *b, size_t size)
{
	size_t n = 0;
	ssize_t got;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	b[0] = 0;
	if (fd < 0)
		return 0;
	while (n < size - 1 && (got = read(fd, b + n, size - 1 - n)) > 0)
		n += got;
	close(fd);
	b[n] = 0;
	return n;
}

/* column gives a number from a file that has a line of names above one of numbers; 0 if it is not there. */
static uint64_t column(const char *text, const char *table, const char *name)
{
	size_t width = strlen(table), wanted = strlen(name);
	const char *names = text, *numbers;

	while (names && strncmp(names, table, width) != 0)
		names = (names = strchr(names, '\n')) ? names + 1 : NULL;
	if (!names || !(numbers = strchr(names, '\n')))
		return 0;
	numbers++;
	for (;;) {
		size_t w = strcspn(names, " \n");
		if (w == wanted && strncmp(names, name, w) == 0)
			return strtoull(numbers, NULL, 10);
		names += w;
		numbers += strcspn(numbers, " \n");
		if (*names != ' ' || *numbers != ' ')
			return 0;
		names++, numbers++;
	}
}

static void readSystem(struct system *s, int64_t at)
{
	char b[12 << 10], *p;
	int i;

	memset(s, 0, sizeof *s);
	s->at = at;
	readAll("/proc/net/netstat", b, sizeof b);
	s->timeouts = column(b, "TcpExt:", "TCPTimeouts");
	s->probes = column(b, "TcpExt:", "TCPLossProbes");
	s->delayed = column(b, "TcpExt:", "DelayedACKs");
	readAll("/proc/net/snmp", b, sizeof b);
	s->resent = column(b, "Tcp:", "RetransSegs");
	readAll("/proc/thread-self/schedstat", b, 256);
	if ((p = strchr(b, ' ')))
		s->delay = strtoll(p, NULL, 10);
	readAll("/proc/stat", b, 512); /* cpu user nice system idle iowait irq softirq steal */
	for (p = b, i = 0; p && i < 8; i++)
		p = (p = strchr(p, ' ')) ? p + strspn(p, " ") : NULL;
	if (p)
		s->stolen = strtoll(p, NULL, 10) * (1000000000 / sysconf(_SC_CLK_TCK));
}

static void readOwn(struct own *o, int64_t at)
{
	struct rusage u;

	o->at = at;
	o->ran = clockOf(CLOCK_THREAD_CPUTIME_ID);
	o->sleeps = getrusage(RUSAGE_THREAD, &u) == 0 ? u.ru_nvcsw : 0;
}

/* explain says what happened since it was last looked, if it was. */
static void explain(struct why *w, int64_t at)
{
	struct system s;
	struct own o;

	readOwn(&o, at);
	readSystem(&s, at);
	if (ownBefore.at) {
		w->over_ran = at - ownBefore.at;
		w->ran = o.ran - ownBefore.ran;
		w->sleeps = o.sleeps - ownBefore.sleeps;
	}
	if (systemBefore.at) {
		w->over = at - systemBefore.at;
		w->delay = s.delay - systemBefore.delay;
		w->stolen = s.stolen - systemBefore.stolen;
		w->timeouts = s.timeouts - systemBefore.timeouts;
		w->probes = s.probes - systemBefore.probes;
		w->resent = s.resent - systemBefore.resent;
		w->delayed = s.delayed - systemBefore.delayed;
	}
	ownBefore = o;
	systemBefore = s;
}

/* among keeps a gap that is among the longest of all times. */
static void among(struct file *f, const struct gap *g)
{
	uint32_t slot = 0, i;

	if (f->count < LONGEST)
		slot = f->count++;
	else
		for (i = 1; i < LONGEST; i++)
			if (f->longest[i].took < f->longest[slot].took)
				slot = i;
	if (f->longest[slot].took < g->took)
		f->longest[slot] = *g;
	if (f->count == LONGEST) {
		int64_t min = f->longest[0].took;
		for (i = 1; i < LONGEST; i++)
			if (f->longest[i].took < min)
				min = f->longest[i].took;
		atomic_store_explicit(&least, min, memory_order_relaxed);
	}
}

/* keep is for the few gaps that are worth more than a line in the histogram, and for the time that has come. */
static void keep(int64_t end, int64_t took, int inside, enum class class)
{
	struct file *f = file;
	struct gap g = {.took = took, .inside = inside, .class = class};
	struct gap *slot;
	int64_t at;

	if (atomic_flag_test_and_set(&changing))
		return; /* another thread keeps one; to wait would be a gap */
	at = clockOf(CLOCK_REALTIME);
	if (took >= NOTABLE)
		explain(&g.why, end);
	else if (end >= systemBefore.at + SYSTEM_EVERY) {
		readSystem(&systemBefore, end);
		readOwn(&ownBefore, end);
	} else if (end >= ownBefore.at + OWN_EVERY)
		readOwn(&ownBefore, end);
	/* The clocks go on while the guest is told of another time; the end of the gap is what is known. */
	g.start = at - took > 0 ? at - took : 1;
	atomic_fetch_add(&f->seq, 1);
	if (at / 1000000000 != second) {
		second = at / 1000000000;
		most[0] = most[1] = 0;
		memset(f->recent[second % SECONDS], 0, sizeof f->recent[0]);
	}
	slot = &f->recent[second % SECONDS][inside];
	if (slot->took < took) {
		*slot = g;
		atomic_store_explicit(&most[inside], took, memory_order_relaxed);
	}
	if (took > atomic_load_explicit(&least, memory_order_relaxed))
		among(f, &g);
	atomic_fetch_add(&f->seq, 1);
	at = end + 1000000000 - at % 1000000000; /* the next second */
	atomic_store_explicit(&due, at < end + OWN_EVERY ? at : end + OWN_EVERY, memory_order_relaxed);
	atomic_flag_clear(&changing);
}

/*
 * What is drawn: a picture, no account. Of threads that make calls at the same time
 * one may lose a call to another.
 */
#define FIRST_SHIFT 20 /* spans begin at a millisecond, a quarter of a second in all */

/* widen makes each span as long as two, so that more time has room; false: another thread is at it. */
static bool widen(struct file *f)
{
	if (atomic_flag_test_and_set(&changing))
		return false;
	atomic_fetch_add(&f->seq, 1);
	for (int i = 0; i < SPANS; i++)
		for (int c = 0; c < CLASSES; c++)
			f->spans[i][c] = i < SPANS / 2 ? f->spans[2 * i][c] + f->spans[2 * i + 1][c] : 0;
	f->shift++;
	atomic_fetch_add(&f->seq, 1);
	atomic_flag_clear(&changing);
	return true;
}

/* spread puts a time inside of calls into the spans that it touches. */
static inline void spread(int64_t start, int64_t end, enum class class)
{
	struct file *f = file;
	if (start < f->began)
		return; /* no clock goes back, but the program could write there */
	uint64_t from = start - f->began, to = end - f->began;
	uint32_t shift = atomic_load_explicit(&f->shift, memory_order_relaxed);

	while (to >> shift >= SPANS) {
		if (!widen(f))
			return;
		shift = f->shift;
	}
	for (uint64_t i = from >> shift; i < to >> shift; i++) {
		uint64_t next = (i + 1) << shift;
		add(&f->spans[i][class], next - from);
		from = next;
	}
	add(&f->spans[to >> shift][class], to - from);
}

/* made keeps a call, in the place of the oldest. */
static inline void made(int64_t start, int64_t took, enum class class)
{
	struct file *f = file;
	struct call *c = &f->newest[atomic_load_explicit(&f->made, memory_order_relaxed) % NEWEST];

	atomic_store_explicit(&c->start, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	c->took = took;
	c->class = class;
	atomic_store_explicit(&c->start, start, memory_order_release);
	add(&f->made, 1);
}

static inline int64_t note(int64_t start, int64_t end, int inside, enum class class)
{
	int64_t took = end - start;

	if (took <= 0)
		return 0; /* another thread was faster */
	if (inside) {
		spread(start, end, class);
		made(start, took, class);
	}
	add(&file->histogram[inside][63 - __builtin_clzll(took)], 1);
	if (took > atomic_load_explicit(&most[inside], memory_order_relaxed) ||
	    took > atomic_load_explicit(&least, memory_order_relaxed) ||
	    end >= atomic_load_explicit(&due, memory_order_relaxed))
		keep(end, took, inside, class);
	return took;
}

/* enter says whether the call is the program's own rather than one made by another call. */
static inline bool enter(enum class class)
{
	called();
	if (!file || depth++)
		return false;
	int64_t last = atomic_load_explicit(&file->last, memory_order_relaxed);
	room = 0;
	since = 0;
	entered = now();
	entering = class;
	if (skipped > 0) { /* what they took the clock was not read for */
		int64_t took = skipped * each < entered - last ? skipped * each : entered - last;
		if (took > 0) {
			add(&file->calls[polling].sum, took);
			spread(last, last + took, polling);
			made(last, took, polling);
			last += took;
		}
		skipped = 0;
	}
	addTo(&file->outside, note(last, entered, 0, class));
	atomic_store_explicit(&file->last, entered, memory_order_relaxed);
	atomic_store_explicit(&file->inside, 1 + class, memory_order_relaxed);
	return true;
}

/* leave gives the time, or 0 if nothing was noted. */
static inline int64_t leave(void)
{
	int64_t t;

	called(); /* what comes next and is not wrapped is another call, too */
	if (!file || !depth || --depth)
		return 0;
	t = now();
	addTo(&file->calls[entering], note(entered, t, 1, entering));
	atomic_store_explicit(&file->last, t, memory_order_relaxed);
	atomic_store_explicit(&file->inside, 0, memory_order_relaxed);
	return t;
}

/*
 * Polls that find nothing. A program that waits by them, one right after the other,
 * makes millions a second, and reading the clock twice for each costs more than they
 * do. So where the time from one to the next was short, the next ones are counted,
 * and their time is taken together, as time in them. The coarse clock, which costs a
 * fifth, says in between whether the system's tick has come: whatever keeps the rank
 * from polling is on the right side of a call, and at most a tick longer.
 */
#define QUICK 2000 /* ns from poll to poll */
#define ROOM 61    /* polls at once: a prime, for calls that come in turn */
static int64_t coarse(void) { return clockOf(CLOCK_MONOTONIC_COARSE); }

/* skip enters a poll, if the clock need not be read for it. */
static inline bool skip(enum class class)
{
	if (room <= 0 || depth || coarse() != tick)
		return false;
	depth = 1;
	atomic_store_explicit(&file->inside, 1 + class, memory_order_relaxed);
	return true;
}

/* polled leaves a poll: one that was skipped or that came after before, and that was in vain or not. */
static inline void polled(enum class class, bool quick, int64_t before, bool vain)
{
	int64_t t;

	if (!quick) {
		t = leave();
		if (!t || !vain)
			return;
	} else {
		depth = 0;
		atomic_store_explicit(&file->inside, 0, memory_order_relaxed);
		if (vain && --room > 0 && coarse() == tick) {
			add(&file->calls[class].n, 1);
			polling = class;
			skipped++;
			return;
		}
		t = now();
		addTo(&file->calls[class], note(atomic_load_explicit(&file->last, memory_order_relaxed), t, 1, class));
		atomic_store_explicit(&file->last, t, memory_order_relaxed);
		if (!vain) {
			room = skipped = 0;
			since = 0;
			return;
		}
	}
	each = before ? (t - before) / (skipped + 1) : QUICK;
	room = each < QUICK ? ROOM : 0;
	skipped = 0;
	since = t;
	tick = coarse();
}

/*
 * Who is who. A communicator carries the ranks that its ranks have in
 * MPI_COMM_WORLD, as an attribute that goes with it; the one used last is
 * remembered, until any goes.
 */
static int key = MPI_KEYVAL_INVALID;
static _Atomic uint64_t gone; /* communicators so far */
static THREAD struct { MPI_Comm comm; uint64_t gone; int n; const int *world; } latest;

struct members { int n; int world[]; };

/* alone says that a copy of a communicator does not have what is known of this one. */
static int alone(MPI_Comm c, int k, void *extra, void *in, void *out, int *has)
{
	(void)c, (void)k, (void)extra, (void)in, (void)out;
	*has = 0;
	return MPI_SUCCESS;
}

static int forget(MPI_Comm c, int k, void *m, void *extra)
{
	(void)c, (void)k, (void)extra;
	atomic_fetch_add(&gone, 1);
	free(m);
	return MPI_SUCCESS;
}

static struct members *learn(MPI_Comm c)
{
	MPI_Group all, there;
	struct members *m = NULL;
	int inter, n, *own;

	if (THEIRS(PMPI_Comm_test_inter)(c, &inter) != MPI_SUCCESS ||
	    (inter ? THEIRS(PMPI_Comm_remote_group)(c, &there) : THEIRS(PMPI_Comm_group)(c, &there)) != MPI_SUCCESS)
		return NULL;
	THEIRS(PMPI_Group_size)(there, &n);
	m = malloc(sizeof *m + n * sizeof(int));
	own = malloc(n * sizeof(int) + 1);
	if (m && own && THEIRS(PMPI_Comm_group)(MPI_COMM_WORLD, &all) == MPI_SUCCESS) {
		m->n = n;
		for (int i = 0; i < n; i++)
			own[i] = i;
		THEIRS(PMPI_Group_translate_ranks)(there, n, own, all, m->world);
		THEIRS(PMPI_Group_free)(&all);
		if (THEIRS(PMPI_Comm_set_attr)(c, key, m) != MPI_SUCCESS) {
			free(m);
			m = NULL;
		}
	} else {
		free(m);
		m = NULL;
	}
	free(own);
	THEIRS(PMPI_Group_free)(&there);
	return m;
}

/* world gives the rank in MPI_COMM_WORLD of a communicator's rank; -1: it has none. */
static int world(int to, MPI_Comm c)
{
	struct members *m = NULL;
	uint64_t g;
	int there = 0;

	if (c == MPI_COMM_WORLD)
		return to;
	g = atomic_load_explicit(&gone, memory_order_relaxed);
	if (latest.comm != c || latest.gone != g || !latest.world) {
		if (key == MPI_KEYVAL_INVALID || THEIRS(PMPI_Comm_get_attr)(c, key, &m, &there) != MPI_SUCCESS)
			return -1;
		if (!there && !(m = learn(c)))
			return -1;
		latest.comm = c, latest.gone = g, latest.n = m->n, latest.world = m->world;
	}
	if (to < 0 || to >= latest.n || latest.world[to] == MPI_UNDEFINED)
		return -1;
	return latest.world[to];
}

static uint64_t amount(int n, MPI_Datatype d)
{
	MPI_Count size = 0;

	if (n <= 0 || d == MPI_DATATYPE_NULL || THEIRS(PMPI_Type_size_x)(d, &size) != MPI_SUCCESS || size < 0)
		return 0;
	return (uint64_t)n * size;
}

static void count(int peer, uint64_t bytes)
{
	addTo(peer >= 0 && (uint32_t)peer < file->peers ? &file->sent[peer] : &file->elsewhere, bytes);
}

/* sent counts a message. */
static void sent(int n, MPI_Datatype d, int to, MPI_Comm c)
{
	if (to != MPI_PROC_NULL)
		count(world(to, c), amount(n, d));
}

/* gave counts what is handed to a collective call. */
static void gave(uint64_t bytes) { addTo(&file->collected, bytes); }

static uint64_t sizeOf(MPI_Comm c)
{
	int n = 0, inter = 0;

	THEIRS(PMPI_Comm_test_inter)(c, &inter);
	inter ? THEIRS(PMPI_Comm_remote_size)(c, &n) : THEIRS(PMPI_Comm_size)(c, &n);
	return n > 0 ? n : 0;
}

static uint64_t amounts(const int n[], MPI_Datatype d, MPI_Comm c)
{
	uint64_t all = 0;

	for (uint64_t i = 0, size = sizeOf(c); i < size; i++)
		all += n[i] > 0 ? n[i] : 0;
	return all * amount(1, d);
}

static bool isRoot(int root, MPI_Comm c)
{
	int own = -1, inter = 0;

	THEIRS(PMPI_Comm_test_inter)(c, &inter);
	if (inter)
		return root == MPI_ROOT;
	THEIRS(PMPI_Comm_rank)(c, &own);
	return own == root;
}

/*
 * Persistent sends: what each will send when it is started. Spinning is for
 * programs whose threads make such calls at the same time.
 */
#define STANDING 1024
static struct standing { MPI_Request q; bool used; int peer; uint64_t bytes; } standing[STANDING];
static atomic_flag standingBusy = ATOMIC_FLAG_INIT;

static struct standing *find(MPI_Request q, bool make)
{
	uintptr_t h = 0;
	struct standing *spare = NULL;

	memcpy(&h, &q, sizeof q < sizeof h ? sizeof q : sizeof h);
	h = (h >> 4) * 0x9e3779b97f4a7c15u >> 32;
	for (int i = 0; i < 16; i++) { /* more in a row are not looked for, so that a full table is no slower */
		struct standing *s = &standing[(h + i) % STANDING];
		if (s->used && s->q == q)
			return s;
		if (!s->used && !spare)
			spare = s;
	}
	return make ? spare : NULL;
}

static void stand(int r, MPI_Request *q, int n, MPI_Datatype d, int to, MPI_Comm c)
{
	struct standing *s;

	if (!file || r != MPI_SUCCESS || to == MPI_PROC_NULL)
		return;
	while (atomic_flag_test_and_set(&standingBusy))
		;
	if ((s = find(*q, true)))
		*s = (struct standing){*q, true, world(to, c), amount(n, d)};
	atomic_flag_clear(&standingBusy);
}

static void start(MPI_Request q, bool over)
{
	struct standing *s;

	while (atomic_flag_test_and_set(&standingBusy))
		;
	if ((s = find(q, false))) {
		if (over)
			s->used = false;
		else
			count(s->peer, s->bytes);
	}
	atomic_flag_clear(&standingBusy);
}

/* begin starts tracing, once MPI has been initialised. */
static void begin(void)
{
	char path[80];
	int rank, ranks, fd, level = MPI_THREAD_SINGLE;
	uint32_t peers;
	size_t size;
	struct file *f;

	if (file || THEIRS(PMPI_Comm_rank)(MPI_COMM_WORLD, &rank) != MPI_SUCCESS || THEIRS(PMPI_Comm_size)(MPI_COMM_WORLD, &ranks) != MPI_SUCCESS)
		return;
	snprintf(path, sizeof path, "/dev/shm/pagurus-trace.%d.%ld", rank, (long)getpid());
	fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return;
	peers = ranks < PEERS ? ranks : PEERS;
	size = sizeof *f + peers * sizeof f->sent[0];
	if (ftruncate(fd, size) == 0) {
		f = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (f != MAP_FAILED) {
			THEIRS(PMPI_Query_thread)(&level);
			many = level == MPI_THREAD_MULTIPLE;
			if (THEIRS(PMPI_Comm_create_keyval)(alone, forget, &key, NULL) != MPI_SUCCESS)
				key = MPI_KEYVAL_INVALID;
			f->version = VERSION;
			f->rank = rank;
			f->ranks = ranks;
			f->peers = peers;
			f->pid = getpid();
			f->begun = clockOf(CLOCK_REALTIME);
			f->began = f->last = now();
			f->shift = FIRST_SHIFT;
			readSystem(&systemBefore, f->began);
			readOwn(&ownBefore, f->began);
			memcpy(f->magic, "PGTRACE\n", 8);
			file = f;
		}
	}
	close(fd);
}

static void end(void)
{
	if (file)
		atomic_store(&file->ended, 1);
}

int MPI_Init(int *argc, char ***argv)
{
	int r = THEIRS(PMPI_Init)(argc, argv);
	begin();
	return r;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	int r = THEIRS(PMPI_Init_thread)(argc, argv, required, provided);
	begin();
	return r;
}

/*
 * CALL wraps a function: its class, its name, its parameters, the same as
 * arguments, and what to count before it, and once it is over.
 */
#define CALLS(class, name, params, args, before, after) \
	int MPI_##name params                           \
	{                                               \
		int r;                                  \
		if (enter(class)) {                     \
			before;                         \
		}                                       \
		r = THEIRS(PMPI_##name) args;           \
		leave();                                \
		after;                                  \
		return r;                               \
	}
#define CALL(class, name, params, args, before) CALLS(class, name, params, args, before, )
#define P2P(name, params, args, before) CALL(SENDRECV, name, params, args, before)
#define ALL(name, params, args, before) CALL(COLLECTIVE, name, params, args, before)
#define WAITS(name, params, args) CALL(WAIT, name, params, args, )
#define REST(name, params, args) CALL(OTHER, name, params, args, )

/* POLL wraps a function that tells whether anything came. */
#define POLL(class, name, params, args, came)                               \
	int MPI_##name params                                               \
	{                                                                   \
		int64_t before = since;                                     \
		bool quick = skip(class), first, nothing;                   \
		int r;                                                      \
		if (!quick)                                                 \
			enter(class);                                       \
		first = ask();                                              \
		r = THEIRS(PMPI_##name) args;                               \
		nothing = r == MPI_SUCCESS && !(came);                      \
		if (first)                                                  \
			heard(nothing);                                     \
		polled(class, quick, before, nothing);                      \
		return r;                                                   \
	}

#define DT MPI_Datatype
#define CM MPI_Comm
#define RQ MPI_Request
#define ST MPI_Status

CALLS(OTHER, Finalize, (void), (), , end())

#define SEND(name) P2P(name, (const void *b, int n, DT d, int to, int tag, CM c), (b, n, d, to, tag, c), sent(n, d, to, c))
#define ISEND(name) \
	P2P(name, (const void *b, int n, DT d, int to, int tag, CM c, RQ *q), (b, n, d, to, tag, c, q), sent(n, d, to, c))
#define SEND_INIT(name)                                                                                               \
	CALLS(OTHER, name, (const void *b, int n, DT d, int to, int tag, CM c, RQ *q), (b, n, d, to, tag, c, q), ,    \
	      stand(r, q, n, d, to, c))
SEND(Send) SEND(Ssend) SEND(Bsend) SEND(Rsend)
ISEND(Isend) ISEND(Issend) ISEND(Ibsend) ISEND(Irsend)
SEND_INIT(Send_init) SEND_INIT(Ssend_init) SEND_INIT(Bsend_init) SEND_INIT(Rsend_init)
P2P(Recv, (void *b, int n, DT d, int from, int tag, CM c, ST *s), (b, n, d, from, tag, c, s), )
P2P(Irecv, (void *b, int n, DT d, int from, int tag, CM c, RQ *q), (b, n, d, from, tag, c, q), )
P2P(Mrecv, (void *b, int n, DT d, MPI_Message *m, ST *s), (b, n, d, m, s), )
P2P(Imrecv, (void *b, int n, DT d, MPI_Message *m, RQ *q), (b, n, d, m, q), )
P2P(Sendrecv, (const void *b, int n, DT d, int to, int tag, void *rb, int rn, DT rd, int from, int rtag, CM c, ST *s),
    (b, n, d, to, tag, rb, rn, rd, from, rtag, c, s), sent(n, d, to, c))
P2P(Sendrecv_replace, (void *b, int n, DT d, int to, int tag, int from, int rtag, CM c, ST *s),
    (b, n, d, to, tag, from, rtag, c, s), sent(n, d, to, c))
P2P(Probe, (int from, int tag, CM c, ST *s), (from, tag, c, s), )
POLL(SENDRECV, Iprobe, (int from, int tag, CM c, int *f, ST *s), (from, tag, c, f, s), *f)
P2P(Mprobe, (int from, int tag, CM c, MPI_Message *m, ST *s), (from, tag, c, m, s), )
POLL(SENDRECV, Improbe, (int from, int tag, CM c, int *f, MPI_Message *m, ST *s), (from, tag, c, f, m, s), *f)
P2P(Start, (RQ * q), (q), start(*q, false))
P2P(Startall, (int n, RQ q[]), (n, q), for (int i = 0; i < n; i++) start(q[i], false))
CALL(OTHER, Request_free, (RQ * q), (q), start(*q, true))
WAITS(Wait, (RQ * q, ST *s), (q, s))
WAITS(Waitall, (int n, RQ q[], ST s[]), (n, q, s))
WAITS(Waitany, (int n, RQ q[], int *i, ST *s), (n, q, i, s))
WAITS(Waitsome, (int n, RQ q[], int *o, int i[], ST s[]), (n, q, o, i, s))
POLL(WAIT, Test, (RQ * q, int *f, ST *s), (q, f, s), *f)
POLL(WAIT, Testall, (int n, RQ q[], int *f, ST s[]), (n, q, f, s), *f)
POLL(WAIT, Testany, (int n, RQ q[], int *i, int *f, ST *s), (n, q, i, f, s), *f)
POLL(WAIT, Request_get_status, (RQ q, int *f, ST *s), (q, f, s), *f)
POLL(WAIT, Testsome, (int n, RQ q[], int *o, int i[], ST s[]), (n, q, o, i, s), *o)

/*
 * Collective calls, each also in the form that does not wait (with a request q
 * at the end): what the rank hands over is what others are to get from it. In
 * place, the count is that of the receiving side.
 */
#define BOTH(name, prompt, params, args, before) \
	ALL(name, (UNPACK params), (UNPACK args), before) ALL(prompt, (UNPACK params, RQ *q), (UNPACK args, q), before)
#define UNPACK(...) __VA_ARGS__
BOTH(Barrier, Ibarrier, (CM c), (c), gave(0))
BOTH(Bcast, Ibcast, (void *b, int n, DT d, int root, CM c), (b, n, d, root, c), gave(isRoot(root, c) ? amount(n, d) : 0))
BOTH(Reduce, Ireduce, (const void *b, void *to, int n, DT d, MPI_Op o, int root, CM c), (b, to, n, d, o, root, c), gave(amount(n, d)))
BOTH(Allreduce, Iallreduce, (const void *b, void *to, int n, DT d, MPI_Op o, CM c), (b, to, n, d, o, c), gave(amount(n, d)))
BOTH(Scan, Iscan, (const void *b, void *to, int n, DT d, MPI_Op o, CM c), (b, to, n, d, o, c), gave(amount(n, d)))
BOTH(Exscan, Iexscan, (const void *b, void *to, int n, DT d, MPI_Op o, CM c), (b, to, n, d, o, c), gave(amount(n, d)))
BOTH(Reduce_scatter, Ireduce_scatter, (const void *b, void *to, const int n[], DT d, MPI_Op o, CM c), (b, to, n, d, o, c), gave(amounts(n, d, c)))
BOTH(Reduce_scatter_block, Ireduce_scatter_block, (const void *b, void *to, int n, DT d, MPI_Op o, CM c), (b, to, n, d, o, c), gave(sizeOf(c) * amount(n, d)))
BOTH(Gather, Igather, (const void *b, int n, DT d, void *to, int tn, DT td, int root, CM c), (b, n, d, to, tn, td, root, c),
     gave(b == MPI_IN_PLACE ? amount(tn, td) : amount(n, d)))
BOTH(Gatherv, Igatherv, (const void *b, int n, DT d, void *to, const int tn[], const int at[], DT td, int root, CM c),
     (b, n, d, to, tn, at, td, root, c), gave(b == MPI_IN_PLACE ? 0 : amount(n, d)))
BOTH(Scatter, Iscatter, (const void *b, int n, DT d, void *to, int tn, DT td, int root, CM c), (b, n, d, to, tn, td, root, c),
     gave(isRoot(root, c) ? sizeOf(c) * amount(n, d) : 0))
BOTH(Scatterv, Iscatterv, (const void *b, const int n[], const int at[], DT d, void *to, int tn, DT td, int root, CM c),
     (b, n, at, d, to, tn, td, root, c), gave(isRoot(root, c) ? amounts(n, d, c) : 0))
BOTH(Allgather, Iallgather, (const void *b, int n, DT d, void *to, int tn, DT td, CM c), (b, n, d, to, tn, td, c),
     gave(b == MPI_IN_PLACE ? amount(tn, td) : amount(n, d)))
BOTH(Allgatherv, Iallgatherv, (const void *b, int n, DT d, void *to, const int tn[], const int at[], DT td, CM c),
     (b, n, d, to, tn, at, td, c), gave(b == MPI_IN_PLACE ? 0 : amount(n, d)))
BOTH(Alltoall, Ialltoall, (const void *b, int n, DT d, void *to, int tn, DT td, CM c), (b, n, d, to, tn, td, c),
     gave(sizeOf(c) * (b == MPI_IN_PLACE ? amount(tn, td) : amount(n, d))))
BOTH(Alltoallv, Ialltoallv, (const void *b, const int n[], const int at[], DT d, void *to, const int tn[], const int tat[], DT td, CM c),
     (b, n, at, d, to, tn, tat, td, c), gave(b == MPI_IN_PLACE ? amounts(tn, td, c) : amounts(n, d, c)))
BOTH(Neighbor_allgather, Ineighbor_allgather, (const void *b, int n, DT d, void *to, int tn, DT td, CM c), (b, n, d, to, tn, td, c), gave(amount(n, d)))

REST(Comm_dup, (CM c, CM *n), (c, n))
REST(Comm_split, (CM c, int color, int k, CM *n), (c, color, k, n))
REST(Comm_create, (CM c, MPI_Group g, CM *n), (c, g, n))
REST(Comm_free, (CM * c), (c))
REST(Win_fence, (int a, MPI_Win w), (a, w))
REST(Win_lock, (int t, int rank, int a, MPI_Win w), (t, rank, a, w))
REST(Win_unlock, (int rank, MPI_Win w), (rank, w))
REST(Win_flush, (int rank, MPI_Win w), (rank, w))

/*
 * Fortran. Every argument is an address, so a wrapper need only know how many
 * there are; it hands on twelve and the thirteenth, which reads a few words
 * too many of its caller's frame and passes them to a function that does not
 * look at them.
 */
typedef void fortran(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);

#define FORTRANS(class, name, before, after)                                                                      \
	void name(void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h, void *i, void *j, void *k, \
	          void *l, void *m)                                                                               \
	{                                                                                                         \
		static fortran *next;                                                                             \
		bool own = enter(class);                                                                          \
		if (!next)                                                                                        \
			next = (fortran *)dlsym(RTLD_NEXT, #name);                                                \
		if (own) {                                                                                        \
			before;                                                                                   \
		}                                                                                                 \
		next(a, b, c, d, e, f, g, h, i, j, k, l, m);                                                      \
		leave();                                                                                          \
		after;                                                                                            \
	}
#define FORTRAN(class, name, before) FORTRANS(class, name, before, )
#define FPOLL(class, name, came)                                                                                  \
	void name(void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h, void *i, void *j, void *k, \
	          void *l, void *m)                                                                               \
	{                                                                                                         \
		static fortran *next;                                                                             \
		int64_t before = since;                                                                           \
		bool quick = skip(class), first;                                                                  \
		if (!quick)                                                                                       \
			enter(class);                                                                             \
		if (!next)                                                                                        \
			next = (fortran *)dlsym(RTLD_NEXT, #name);                                                \
		first = ask();                                                                                    \
		next(a, b, c, d, e, f, g, h, i, j, k, l, m);                                                      \
		if (first)                                                                                        \
			heard(!INT(came));                                                                        \
		polled(class, quick, before, !INT(came));                                                         \
	}

/* What the arguments of a Fortran call mean. */
#define INT(p) (*(MPI_Fint *)(p))

#define TYPE(p) MPI_Type_f2c(INT(p))
#define COMM(p) MPI_Comm_f2c(INT(p))
#define AMOUNT(n, d) amount(INT(n), TYPE(d))

/* standF and startF take handles as Fortran has them. */
static void standF(bool own, MPI_Fint request, MPI_Fint n, MPI_Fint d, MPI_Fint to, MPI_Fint c)
{
	MPI_Request q = MPI_Request_f2c(request);

	if (own)
		stand(MPI_SUCCESS, &q, n, MPI_Type_f2c(d), to, MPI_Comm_f2c(c));
}

static void startF(MPI_Fint request, bool over) { start(MPI_Request_f2c(request), over); }

FORTRANS(OTHER, mpi_init_, , begin())
FORTRANS(OTHER, mpi_init_thread_, , begin())
FORTRANS(OTHER, mpi_finalize_, , end())
#define FSEND(name) FORTRAN(SENDRECV, name, sent(INT(b), TYPE(c), INT(d), COMM(f)))
#define FSEND_INIT(name) FORTRANS(OTHER, name, , standF(own, INT(g), INT(b), INT(c), INT(d), INT(f)))
FSEND(mpi_send_) FSEND(mpi_ssend_) FSEND(mpi_bsend_) FSEND(mpi_rsend_)
FSEND(mpi_isend_) FSEND(mpi_issend_) FSEND(mpi_ibsend_) FSEND(mpi_irsend_)
FSEND_INIT(mpi_send_init_) FSEND_INIT(mpi_ssend_init_) FSEND_INIT(mpi_bsend_init_) FSEND_INIT(mpi_rsend_init_)
FORTRAN(SENDRECV, mpi_recv_, )
FORTRAN(SENDRECV, mpi_irecv_, )
FORTRAN(SENDRECV, mpi_sendrecv_, sent(INT(b), TYPE(c), INT(d), COMM(k)))
FORTRAN(SENDRECV, mpi_sendrecv_replace_, sent(INT(b), TYPE(c), INT(d), COMM(h)))
FORTRAN(SENDRECV, mpi_probe_, )
FPOLL(SENDRECV, mpi_iprobe_, d)
FORTRAN(SENDRECV, mpi_start_, startF(INT(a), false))
FORTRAN(SENDRECV, mpi_startall_, for (MPI_Fint at = 0; at < INT(a); at++) startF(((MPI_Fint *)b)[at], false))
FORTRAN(OTHER, mpi_request_free_, startF(INT(a), true))
FORTRAN(WAIT, mpi_wait_, )
FORTRAN(WAIT, mpi_waitall_, )
FORTRAN(WAIT, mpi_waitany_, )
FORTRAN(WAIT, mpi_waitsome_, )
FPOLL(WAIT, mpi_request_get_status_, b)
FPOLL(WAIT, mpi_test_, b)
FPOLL(WAIT, mpi_testall_, c)
FPOLL(WAIT, mpi_testany_, d)
FPOLL(WAIT, mpi_testsome_, c)
FORTRAN(COLLECTIVE, mpi_barrier_, gave(0))
FORTRAN(COLLECTIVE, mpi_bcast_, gave(isRoot(INT(d), COMM(e)) ? AMOUNT(b, c) : 0))
FORTRAN(COLLECTIVE, mpi_reduce_, gave(AMOUNT(c, d)))
FORTRAN(COLLECTIVE, mpi_allreduce_, gave(AMOUNT(c, d)))
FORTRAN(COLLECTIVE, mpi_scan_, gave(AMOUNT(c, d)))
FORTRAN(COLLECTIVE, mpi_reduce_scatter_, gave(amounts(c, TYPE(d), COMM(f))))
FORTRAN(COLLECTIVE, mpi_gather_, gave(AMOUNT(b, c)))
FORTRAN(COLLECTIVE, mpi_gatherv_, gave(AMOUNT(b, c)))
FORTRAN(COLLECTIVE, mpi_scatter_, gave(isRoot(INT(g), COMM(h)) ? sizeOf(COMM(h)) * AMOUNT(b, c) : 0))
FORTRAN(COLLECTIVE, mpi_scatterv_, gave(isRoot(INT(h), COMM(i)) ? amounts(b, TYPE(d), COMM(i)) : 0))
FORTRAN(COLLECTIVE, mpi_allgather_, gave(AMOUNT(e, f)))
FORTRAN(COLLECTIVE, mpi_allgatherv_, gave(AMOUNT(b, c)))
FORTRAN(COLLECTIVE, mpi_alltoall_, gave(sizeOf(COMM(g)) * AMOUNT(e, f)))
FORTRAN(COLLECTIVE, mpi_alltoallv_, gave(amounts(b, TYPE(d), COMM(i))))
FORTRAN(OTHER, mpi_comm_dup_, )
FORTRAN(OTHER, mpi_comm_split_, )
