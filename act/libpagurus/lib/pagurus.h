/*
 * pagurus.h: a program that runs in a guest of Pagurus asks where it is, marks moments in which a
 * move of it is cheap, and asks for moves and checkpoints of its own job.
 *
 *   cc -o program program.c -lpagurus        or: cc program.c $(pkg-config --cflags --libs pagurus)
 *
 * The library is in every guest, and in `pagurus image shell`. A program that is linked with it runs
 * without Pagurus, too: every call then returns PAGURUS_NONE at once. All calls may be made by any
 * thread and any process of the job. docs/libpagurus.md tells the rest.
 */
#ifndef PAGURUS_H
#define PAGURUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* What calls return. */
enum {
	PAGURUS_OK = 0,
	PAGURUS_NONE = 1,    /* this program does not run under Pagurus */
	PAGURUS_INVALID = 2, /* an argument is wrong, or the guest is older than this call */
	PAGURUS_REFUSED = 3, /* pagurus_text says why */
	PAGURUS_BUSY = 4,    /* asked too often: again in a second or later */
	PAGURUS_LATE = 5,    /* no answer came in ten seconds, or those that pagurus_grow has; what was asked for may happen yet */
	PAGURUS_FAULT = 6    /* the guest's agent does not answer as it should */
};

/* What a call is about. */
enum {
	PAGURUS_ME = 0, /* the guest that the caller is in */
	PAGURUS_JOB = 1 /* all guests of the job */
};

/* Where a move goes. */
enum {
	PAGURUS_BETTER = 0,   /* to a host that is less busy, if there is one */
	PAGURUS_AWAY = 1,     /* to any other host */
	PAGURUS_WITH_RANK = 2 /* to the host where a rank is */
};

/* How grave a remark is. */
enum { PAGURUS_NOTE = 0, PAGURUS_WARNING = 1, PAGURUS_ILL = 2 };

struct pagurus_place {
	char job[32];
	char guest[40];
	char host[128];
	char site[128]; /* empty: its host has none */
	int guests;     /* of the job; only pagurus_where sets this and the next three */
	int here;       /* of them, those on this host, with the caller's */
	int cpus;       /* of the host */
	double load;    /* of them, those that guests use, the caller's own with them */
};

/* Where a neighbour is, seen from the caller. */
enum { PAGURUS_SAME_HOST = 0, PAGURUS_SAME_SITE = 1, PAGURUS_ELSEWHERE = 2 };

struct pagurus_distance {
	char guest[40];
	char host[128];
	int place;        /* one of those above; hosts that have no site are of one */
	double latency;   /* seconds of a round trip between the two hosts; 0: the same host, or not measured */
	double bandwidth; /* bytes a second that went between them in a moment lately, or else that their slower interface
	                     can carry; 0: the same host, or not known */
};

struct pagurus_price {
	char to[128];         /* the host that it would move to now */
	double seconds;       /* from the order until all is over */
	double seconds_low;
	double seconds_high;  /* nine of ten take between the two */
	double downtime;      /* of that, seconds in which the guest stands still */
	long long bytes;      /* to send */
	int converges;        /* 0: it would be cancelled, because memory changes faster than it is sent */
};

struct pagurus_growth {
	int guests;      /* how many more the job has got */
	int first;       /* the number of the first of them; the name of number 2 is guest2 */
	int slots;       /* ranks that are meant to run in each of them */
	char hosts[256]; /* "guest2:2,guest3:2", as MPI_Comm_spawn has it under the info keys add-host and host (Open MPI) or hosts (MPICH) */
};

/* Where am I? */
int pagurus_where(struct pagurus_place *place);

/* The other guests of the job: up to most of them, and in *count how many are known: of a very large job not all. */
int pagurus_neighbours(struct pagurus_place *places, int most, int *count);

/* How far are they? In the same order, and bounded as well. */
int pagurus_distances(struct pagurus_distance *others, int most, int *count);

/* What would a move cost now? what: PAGURUS_ME or PAGURUS_JOB. */
int pagurus_cost(int what, struct pagurus_price *price);

/* What would it cost from a moment on that pagurus_cheap_now() marks? The same, until such moments have been sampled,
 * or scratch memory is known. */
int pagurus_cost_at_mark(int what, struct pagurus_price *price);

/* Asks for a move: PAGURUS_ME or PAGURUS_JOB, how as above, rank only of PAGURUS_WITH_RANK. It returns when
 * the move is decided, and the program runs on while it moves; pagurus_where tells when it is elsewhere. */
int pagurus_move(int what, int how, int rank);

/* Asks for a checkpoint of the job. It returns when that is decided. */
int pagurus_checkpoint(void);

/* Starts more guests of a job that was submitted with --grow, and returns when all of them run. Up to 16 at once, within so many
 * seconds (600 at most). If that cannot be, pagurus_text says why, and none is left. They are the job's until it ends. */
int pagurus_grow(int guests, double seconds, struct pagurus_growth *growth);

/* The same, with as many guests as so many ranks need. */
int pagurus_grow_ranks(int ranks, double seconds, struct pagurus_growth *growth);

/* A move is cheap now: little memory is being written. Call it where each step or phase ends. It ends
 * this process's pagurus_not_now. */
int pagurus_cheap_now(void);

/* The program does not need what is in this memory at any of its cheap moments: neither its other threads do. So a
 * pagurus_cheap_now() for which a move waits gives its whole pages back, and they need not be sent. THEY THEN READ AS
 * ZEROS: what was in them is lost. It must be private memory of no file, as from malloc, mmap or new, and no stack; 64
 * regions at most. A forked process has them, too. Not from signal handlers. */
int pagurus_scratch(void *memory, unsigned long length);

/* It is needed again, or about to be freed, which must not happen before. memory is as in pagurus_scratch. */
int pagurus_scratch_end(void *memory);

/* Moves should not begin for so many seconds (a minute at most), or until pagurus_cheap_now. */
int pagurus_not_now(double seconds);

/* Tells people something of the job's health: `pagurus explain` shows the last remark. */
int pagurus_remark(int level, const char *text);

/* What was said about this thread's last call, a sentence for people; empty: nothing. */
const char *pagurus_text(void);

#ifdef __cplusplus
}
#endif
#endif
