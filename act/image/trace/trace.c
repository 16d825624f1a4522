/*
 * libpagurus-trace: notes the longest silences in a program's MPI calls.
 *
 * Preloaded into the ranks of a traced job (LD_PRELOAD), it stands between
 * the program and the MPI library by the standard's profiling interface, and
 * takes the time on entering and leaving every call that communicates. A gap
 * is the time inside one call, or between two. Each rank keeps its 64 longest
 * and a histogram of all in /dev/shm/pagurus-trace.RANK.PID, a shared mapping
 * that the guest agent reads at any time, also after the program has ended.
 * The price is two clock readings a call, and a look through 64 entries for
 * the few gaps that are among the longest.
 *
 * Fortran: mpi_*_ of MPICH call the C functions, those of Open MPI call PMPI_*
 * directly, so the common ones are wrapped here, too; a nested call is counted
 * once. Programs that use the module mpi_f08 with Open MPI are not seen: their
 * ranks leave no file.
 *
 * Where PAGURUS_WAIT is set it also makes sched_yield() wait for what the
 * thread has last looked for with a poll() or epoll_wait() of no duration, for that many
 * milliseconds at most: Open MPI, told to yield, does both in turn while a rank
 * waits. The rank then leaves its virtual CPU idle and the real one to the
 * guest it waits for. That is for guests that share cores, as emulated ones do;
 * elsewhere it would cost latency.
 *
 * It never prints, never fails a call, and does nothing where /dev/shm does
 * not work. It must not know who reads the file.
 *
 * Built inside the image, with the image's MPI, for Open MPI and MPICH alike:
 *   mpicc -O2 -fPIC -shared -Wall -o /usr/lib/pagurus/libpagurus-trace.so trace.c -ldl
 *
 * Tested by cmd/pagurus-guest in real guests.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GAPS 64

/* The file. The guest agent (gaps.go) reads the same layout. */
struct gap {
	int64_t start;   /* CLOCK_REALTIME, ns */
	int64_t took;    /* ns */
	uint32_t inside; /* of a call; otherwise between two */
	uint32_t unused;
};

struct file {
	char magic[8];
	_Atomic uint32_t seq; /* odd while gaps are being changed */
	int32_t rank;
	uint32_t count; /* of gaps that are valid */
	uint32_t unused;
	_Atomic int64_t last;   /* when a call was last left */
	_Atomic uint64_t calls; /* so far */
	char reserved[24];
	struct gap gaps[GAPS];
	_Atomic uint64_t histogram[2][64]; /* [inside][floor(log2(ns))] */
};

_Static_assert(offsetof(struct file, gaps) == 64, "layout");
_Static_assert(sizeof(struct gap) == 24, "layout");

static struct file *file; /* NULL: not tracing */
static atomic_flag changing = ATOMIC_FLAG_INIT;
static _Atomic int64_t least; /* shorter gaps are not among the longest */
static __thread int depth;
static __thread int64_t entered;

/* What the thread looked for last; more than fits is not waited for. */
#define LOOKED 256
static __thread struct pollfd looked[LOOKED];
static __thread nfds_t lookedFor;

/*
 * How often the thread has yielded since something came. Open MPI also yields
 * on the way from one call to the next, with a message in hand to be sent:
 * only who has yielded in vain this often waits.
 */
#define VAIN_MOST 4
static __thread int vain;

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
	int came = pollFor(fds, n, ms);
	if (came > 0)
		vain = 0;
	return came;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
	if (ms == 0 && longest() > 0) {
		looked[0] = (struct pollfd){.fd = fd, .events = POLLIN};
		lookedFor = 1;
	}
	int came = syscall(SYS_epoll_pwait, fd, events, most, ms, NULL, (size_t)0);
	if (came > 0)
		vain = 0;
	return came;
}

int sched_yield(void)
{
	static __thread int ready;
	int ms = longest();

	if (ms == 0 || vain++ < VAIN_MOST)
		return syscall(SYS_sched_yield);
	if (lookedFor == 0)
		return pollFor(NULL, 0, 1); /* nothing to be woken by: not for long */
	if (pollFor(looked, lookedFor, ms) <= 0)
		ready = 0;
	else if (++ready > READY_MOST)
		nanosleep(&(struct timespec){.tv_nsec = READY_NS}, NULL);
	return 0;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void keep(int64_t start, int64_t took, int inside)
{
	struct file *f = file;
	uint32_t slot = 0, i;

	if (atomic_flag_test_and_set(&changing))
		return; /* another thread keeps one; to wait would be a gap */
	atomic_fetch_add(&f->seq, 1);
	if (f->count < GAPS)
		slot = f->count++;
	else
		for (i = 1; i < GAPS; i++)
			if (f->gaps[i].took < f->gaps[slot].took)
				slot = i;
	if (f->gaps[slot].took < took) {
		f->gaps[slot].start = start;
		f->gaps[slot].took = took;
		f->gaps[slot].inside = inside;
	}
	if (f->count == GAPS) {
		int64_t min = f->gaps[0].took;
		for (i = 1; i < GAPS; i++)
			if (f->gaps[i].took < min)
				min = f->gaps[i].took;
		least = min;
	}
	atomic_fetch_add(&f->seq, 1);
	atomic_flag_clear(&changing);
}

static void note(int64_t start, int64_t end, int inside)
{
	int64_t took = end - start;

	if (took <= 0)
		return; /* the clock was set */
	atomic_fetch_add_explicit(&file->histogram[inside][63 - __builtin_clzll(took)], 1, memory_order_relaxed);
	if (took > atomic_load_explicit(&least, memory_order_relaxed))
		keep(start, took, inside);
}

static void enter(void)
{
	if (!file || depth++)
		return;
	entered = now();
	note(atomic_load_explicit(&file->last, memory_order_relaxed), entered, 0);
}

static void leave(void)
{
	int64_t t;

	if (!file || !depth || --depth)
		return;
	t = now();
	note(entered, t, 1);
	atomic_store_explicit(&file->last, t, memory_order_relaxed);
	atomic_fetch_add_explicit(&file->calls, 1, memory_order_relaxed);
}

/* begin starts tracing, once MPI has been initialised. */
static void begin(void)
{
	char path[80];
	int rank, fd;
	struct file *f;

	if (file || PMPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS)
		return;
	snprintf(path, sizeof path, "/dev/shm/pagurus-trace.%d.%ld", rank, (long)getpid());
	fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return;
	if (ftruncate(fd, sizeof *f) == 0) {
		f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (f != MAP_FAILED) {
			f->rank = rank;
			f->last = now();
			memcpy(f->magic, "PGTRACE1", 8);
			file = f;
		}
	}
	close(fd);
}

int MPI_Init(int *argc, char ***argv)
{
	int r = PMPI_Init(argc, argv);
	begin();
	return r;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	int r = PMPI_Init_thread(argc, argv, required, provided);
	begin();
	return r;
}

/* CALL wraps a function: its name, parameters, and the same as arguments. */
#define CALL(name, params, args)    \
	int MPI_##name params           \
	{                               \
		int r;                      \
		enter();                    \
		r = PMPI_##name args;       \
		leave();                    \
		return r;                   \
	}

#define DT MPI_Datatype
#define CM MPI_Comm
#define RQ MPI_Request
#define ST MPI_Status

CALL(Finalize, (void), ())

#define SEND(name) CALL(name, (const void *b, int n, DT d, int to, int tag, CM c), (b, n, d, to, tag, c))
#define ISEND(name) CALL(name, (const void *b, int n, DT d, int to, int tag, CM c, RQ *q), (b, n, d, to, tag, c, q))
SEND(Send) SEND(Ssend) SEND(Bsend) SEND(Rsend)
ISEND(Isend) ISEND(Issend) ISEND(Ibsend) ISEND(Irsend)
CALL(Recv, (void *b, int n, DT d, int from, int tag, CM c, ST *s), (b, n, d, from, tag, c, s))
CALL(Irecv, (void *b, int n, DT d, int from, int tag, CM c, RQ *q), (b, n, d, from, tag, c, q))
CALL(Mrecv, (void *b, int n, DT d, MPI_Message *m, ST *s), (b, n, d, m, s))
CALL(Imrecv, (void *b, int n, DT d, MPI_Message *m, RQ *q), (b, n, d, m, q))
CALL(Sendrecv, (const void *b, int n, DT d, int to, int tag, void *rb, int rn, DT rd, int from, int rtag, CM c, ST *s),
     (b, n, d, to, tag, rb, rn, rd, from, rtag, c, s))
CALL(Sendrecv_replace, (void *b, int n, DT d, int to, int tag, int from, int rtag, CM c, ST *s),
     (b, n, d, to, tag, from, rtag, c, s))
CALL(Probe, (int from, int tag, CM c, ST *s), (from, tag, c, s))
CALL(Iprobe, (int from, int tag, CM c, int *f, ST *s), (from, tag, c, f, s))
CALL(Mprobe, (int from, int tag, CM c, MPI_Message *m, ST *s), (from, tag, c, m, s))
CALL(Improbe, (int from, int tag, CM c, int *f, MPI_Message *m, ST *s), (from, tag, c, f, m, s))
CALL(Start, (RQ * q), (q))
CALL(Startall, (int n, RQ q[]), (n, q))
CALL(Wait, (RQ * q, ST *s), (q, s))
CALL(Waitall, (int n, RQ q[], ST s[]), (n, q, s))
CALL(Waitany, (int n, RQ q[], int *i, ST *s), (n, q, i, s))
CALL(Waitsome, (int n, RQ q[], int *o, int i[], ST s[]), (n, q, o, i, s))
CALL(Test, (RQ * q, int *f, ST *s), (q, f, s))
CALL(Testall, (int n, RQ q[], int *f, ST s[]), (n, q, f, s))
CALL(Testany, (int n, RQ q[], int *i, int *f, ST *s), (n, q, i, f, s))
CALL(Testsome, (int n, RQ q[], int *o, int i[], ST s[]), (n, q, o, i, s))

CALL(Barrier, (CM c), (c))
CALL(Bcast, (void *b, int n, DT d, int root, CM c), (b, n, d, root, c))
CALL(Reduce, (const void *b, void *r_, int n, DT d, MPI_Op o, int root, CM c), (b, r_, n, d, o, root, c))
CALL(Allreduce, (const void *b, void *r_, int n, DT d, MPI_Op o, CM c), (b, r_, n, d, o, c))
CALL(Scan, (const void *b, void *r_, int n, DT d, MPI_Op o, CM c), (b, r_, n, d, o, c))
CALL(Exscan, (const void *b, void *r_, int n, DT d, MPI_Op o, CM c), (b, r_, n, d, o, c))
CALL(Reduce_scatter, (const void *b, void *r_, const int n[], DT d, MPI_Op o, CM c), (b, r_, n, d, o, c))
CALL(Reduce_scatter_block, (const void *b, void *r_, int n, DT d, MPI_Op o, CM c), (b, r_, n, d, o, c))
CALL(Gather, (const void *b, int n, DT d, void *rb, int rn, DT rd, int root, CM c), (b, n, d, rb, rn, rd, root, c))
CALL(Gatherv, (const void *b, int n, DT d, void *rb, const int rn[], const int at[], DT rd, int root, CM c),
     (b, n, d, rb, rn, at, rd, root, c))
CALL(Scatter, (const void *b, int n, DT d, void *rb, int rn, DT rd, int root, CM c), (b, n, d, rb, rn, rd, root, c))
CALL(Scatterv, (const void *b, const int n[], const int at[], DT d, void *rb, int rn, DT rd, int root, CM c),
     (b, n, at, d, rb, rn, rd, root, c))
CALL(Allgather, (const void *b, int n, DT d, void *rb, int rn, DT rd, CM c), (b, n, d, rb, rn, rd, c))
CALL(Allgatherv, (const void *b, int n, DT d, void *rb, const int rn[], const int at[], DT rd, CM c),
     (b, n, d, rb, rn, at, rd, c))
CALL(Alltoall, (const void *b, int n, DT d, void *rb, int rn, DT rd, CM c), (b, n, d, rb, rn, rd, c))
CALL(Alltoallv, (const void *b, const int n[], const int at[], DT d, void *rb, const int rn[], const int rat[], DT rd, CM c),
     (b, n, at, d, rb, rn, rat, rd, c))
CALL(Ibarrier, (CM c, RQ *q), (c, q))
CALL(Ibcast, (void *b, int n, DT d, int root, CM c, RQ *q), (b, n, d, root, c, q))
CALL(Iallreduce, (const void *b, void *r_, int n, DT d, MPI_Op o, CM c, RQ *q), (b, r_, n, d, o, c, q))
CALL(Comm_dup, (CM c, CM *n), (c, n))
CALL(Comm_split, (CM c, int color, int k, CM *n), (c, color, k, n))
CALL(Win_fence, (int a, MPI_Win w), (a, w))
CALL(Win_lock, (int t, int rank, int a, MPI_Win w), (t, rank, a, w))
CALL(Win_unlock, (int rank, MPI_Win w), (rank, w))
CALL(Win_flush, (int rank, MPI_Win w), (rank, w))

/*
 * Fortran. Every argument is an address, so a wrapper need only know how many
 * there are; it hands on twelve and the thirteenth, which reads a few words
 * too many of its caller's frame and passes them to a function that does not
 * look at them.
 */
typedef void fortran(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);

#define FORTRAN(name, after)                                                                                           \
	void name(void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h, void *i, void *j, void *k,       \
	          void *l, void *m)                                                                                        \
	{                                                                                                                  \
		static fortran *next;                                                                                          \
		if (!next)                                                                                                     \
			next = (fortran *)dlsym(RTLD_NEXT, #name);                                                                 \
		enter();                                                                                                       \
		next(a, b, c, d, e, f, g, h, i, j, k, l, m);                                                                   \
		leave();                                                                                                       \
		after;                                                                                                         \
	}

FORTRAN(mpi_init_, begin())
FORTRAN(mpi_init_thread_, begin())
FORTRAN(mpi_finalize_, )
FORTRAN(mpi_send_, )
FORTRAN(mpi_ssend_, )
FORTRAN(mpi_bsend_, )
FORTRAN(mpi_rsend_, )
FORTRAN(mpi_isend_, )
FORTRAN(mpi_issend_, )
FORTRAN(mpi_recv_, )
FORTRAN(mpi_irecv_, )
FORTRAN(mpi_sendrecv_, )
FORTRAN(mpi_sendrecv_replace_, )
FORTRAN(mpi_probe_, )
FORTRAN(mpi_iprobe_, )
FORTRAN(mpi_start_, )
FORTRAN(mpi_startall_, )
FORTRAN(mpi_wait_, )
FORTRAN(mpi_waitall_, )
FORTRAN(mpi_waitany_, )
FORTRAN(mpi_waitsome_, )
FORTRAN(mpi_test_, )
FORTRAN(mpi_testall_, )
FORTRAN(mpi_testany_, )
FORTRAN(mpi_testsome_, )
FORTRAN(mpi_barrier_, )
FORTRAN(mpi_bcast_, )
FORTRAN(mpi_reduce_, )
FORTRAN(mpi_allreduce_, )
FORTRAN(mpi_scan_, )
FORTRAN(mpi_reduce_scatter_, )
FORTRAN(mpi_gather_, )
FORTRAN(mpi_gatherv_, )
FORTRAN(mpi_scatter_, )
FORTRAN(mpi_scatterv_, )
FORTRAN(mpi_allgather_, )
FORTRAN(mpi_allgatherv_, )
FORTRAN(mpi_alltoall_, )
FORTRAN(mpi_alltoallv_, )
FORTRAN(mpi_comm_dup_, )
FORTRAN(mpi_comm_split_, )
