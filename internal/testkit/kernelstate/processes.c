/* Kernel state of processes and threads. */
#include <dirent.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <linux/rseq.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <netinet/in.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>

/* number reads a number from a file. */
static long number(const char *path, int base)
{
	char text[100] = "";
	int f = open(path, O_RDONLY);

	if (f < 0 || read(f, text, sizeof text - 1) < 0)
		return -1;
	close(f);
	return strtol(text, 0, base);
}

static void put(const char *path, const char *text)
{
	int f = MUST(open(path, O_WRONLY));

	MUST(write(f, text, strlen(text)));
	close(f);
}

/* field gives the text after a word in /proc/self/status. */
static const char *field(const char *word)
{
	static char line[300];
	FILE *f = fopen("/proc/self/status", "r");
	size_t n = strlen(word);

	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, word, n)) {
			fclose(f);
			return line + n;
		}
	return "";
}

/* vmflags gives the flags of the mapping at an address. */
static char *vmflags(void *at)
{
	static char line[400];
	FILE *f = fopen("/proc/self/smaps", "r");
	unsigned long from, to;
	int in = 0;

	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			in = from <= (unsigned long)at && (unsigned long)at < to;
		if (in && !strncmp(line, "VmFlags:", 8)) {
			fclose(f);
			return line;
		}
	}
	return "";
}

/* beside runs a function in a second thread and in the first. */
static void beside(void *(*f)(void *), void *first, void *second)
{
	pthread_t t;

	if (pthread_create(&t, 0, f, second))
		MUST(-1);
	f(first);
	pthread_join(t, 0);
}

/* settled lets both threads wait for the move after both have set their state. */
static pthread_barrier_t both;

static void settled(int leader)
{
	pthread_barrier_wait(&both);
	if (leader)
		await_move();
	pthread_barrier_wait(&both);
}

static void *pinned(void *leader)
{
	cpu_set_t set, now;
	int count, want = -1;

	MUST(sched_getaffinity(0, sizeof set, &set));
	count = CPU_COUNT(&set);
	for (int i = 0; i < CPU_SETSIZE; i++) /* the first thread gets the last CPU, the second the first */
		if (CPU_ISSET(i, &set) && (leader || want < 0))
			want = i;
	CPU_ZERO(&set);
	CPU_SET(want, &set);
	MUST(sched_setaffinity(0, sizeof set, &set));
	settled(leader != 0);
	MUST(sched_getaffinity(0, sizeof now, &now));
	IS(CPU_EQUAL(&set, &now), "thread %s: %d of %d processors, not that one", leader ? "1" : "2", CPU_COUNT(&now), count);
	return 0;
}

static void affinity(void) { beside(pinned, "", 0); }

static void *urgent(void *leader)
{
	long want = leader ? 2 << 13 | 6 : 3 << 13, is;

	MUST(syscall(SYS_ioprio_set, 1, 0, want));
	settled(leader != 0);
	is = syscall(SYS_ioprio_get, 1, 0);
	IS(is == want, "I/O priority of thread %s: %lx", leader ? "1" : "2", is);
	return 0;
}

static void io_priority(void) { beside(urgent, "", 0); }

static void *slack(void *leader)
{
	long want = leader ? 123456 : 1, is;

	MUST(prctl(PR_SET_TIMERSLACK, want));
	settled(leader != 0);
	is = prctl(PR_GET_TIMERSLACK);
	IS(is == want, "timer slack of thread %s: %ld", leader ? "1" : "2", is);
	return 0;
}

static void timer_slack(void) { beside(slack, "", 0); }

struct attr { /* sched_attr(2) */
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
	uint32_t least, most;
};

static void schedule(struct attr want)
{
	struct attr is = {0};

	want.size = sizeof want;
	MUST(syscall(SYS_sched_setattr, 0, &want, 0));
	MUST(syscall(SYS_sched_getattr, 0, &want, sizeof want, 0));
	await_move();
	MUST(syscall(SYS_sched_getattr, 0, &is, sizeof is, 0));
	IS(!memcmp(&is, &want, sizeof is), "policy %u (%u) flags %lx (%lx) nice %d (%d) slice %lu (%lu) clamp %u-%u (%u-%u)", is.policy, want.policy,
	   is.flags, want.flags, is.nice, want.nice, is.runtime, want.runtime, is.least, is.most, want.least, want.most);
}

static void sched_batch(void) { schedule((struct attr){.policy = SCHED_BATCH, .nice = 5, .flags = 1}); }
static void sched_idle(void) { schedule((struct attr){.policy = 5 /* SCHED_IDLE */, .nice = 3}); }
static void sched_slice(void) { schedule((struct attr){.nice = 2, .runtime = 20000000}); }

static void *niced(void *leader)
{
	int want = leader ? 4 : 9, is;
	char called[20] = "", wanted[] = {'a', ' ', leader ? '1' : '2', 0};

	MUST(setpriority(PRIO_PROCESS, syscall(SYS_gettid), want));
	MUST(prctl(PR_SET_NAME, wanted));
	settled(leader != 0);
	is = getpriority(PRIO_PROCESS, syscall(SYS_gettid));
	prctl(PR_GET_NAME, called);
	IS(is == want && !strcmp(called, wanted), "nice %d, not %d, called %s, not %s", is, want, called, wanted);
	return 0;
}

static void nice_and_name(void) { beside(niced, "", 0); }

static void coredump_filter(void)
{
	put("/proc/self/coredump_filter", "0x7f");
	await_move();
	IS(number("/proc/self/coredump_filter", 16) == 0x7f, "filter %lx", number("/proc/self/coredump_filter", 16));
}

static void oom_score(void)
{
	put("/proc/self/oom_score_adj", "500");
	await_move();
	IS(number("/proc/self/oom_score_adj", 10) == 500, "%ld", number("/proc/self/oom_score_adj", 10));
}

static void dumpable(void)
{
	MUST(prctl(PR_SET_DUMPABLE, 0));
	await_move();
	IS(prctl(PR_GET_DUMPABLE) == 0, "it is dumpable");
}

static void subreaper(void)
{
	int is = 0;

	MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
	await_move();
	prctl(PR_GET_CHILD_SUBREAPER, &is);
	IS(is == 1, "it is none any more");
}

static void thp_disable(void)
{
	MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	await_move();
	IS(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1, "huge pages are allowed");
}

static void *deathsig(void *leader)
{
	int is = 0, want = leader ? SIGUSR1 : SIGUSR2;

	MUST(prctl(PR_SET_PDEATHSIG, want));
	settled(leader != 0);
	prctl(PR_GET_PDEATHSIG, &is);
	IS(is == want, "signal %d of thread %s", is, leader ? "1" : "2");
	return 0;
}

static void pdeathsig(void) { beside(deathsig, "", 0); }

static void no_new_privs(void)
{
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	await_move();
	IS(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "new privileges are possible");
}

static void keepcaps(void)
{
	MUST(prctl(PR_SET_KEEPCAPS, 1));
	await_move();
	IS(prctl(PR_GET_KEEPCAPS) == 1, "%d", prctl(PR_GET_KEEPCAPS));
}

static void *person(void *leader)
{
	int want = leader ? ADDR_NO_RANDOMIZE : ADDR_NO_RANDOMIZE | SHORT_INODE;

	MUST(personality(want));
	settled(leader != 0);
	IS(personality(0xffffffff) == want, "personality %x of thread %s", personality(0xffffffff), leader ? "1" : "2");
	return 0;
}

static void persona(void) { beside(person, "", 0); }

static void *memory_of(void *leader)
{
	unsigned long nodes = leader ? 1 : 0, is_nodes[16] = {0};
	int want = leader ? 2 | 1 << 15 /* MPOL_BIND, MPOL_F_STATIC_NODES */ : 4 /* MPOL_LOCAL */, is = -1;

	MUST(syscall(SYS_set_mempolicy, want, leader ? &nodes : 0, leader ? 64 : 0));
	MUST(personality(ADDR_COMPAT_LAYOUT));
	settled(leader != 0);
	IS(personality(0xffffffff) == ADDR_COMPAT_LAYOUT, "personality %x", personality(0xffffffff));
	MUST(syscall(SYS_get_mempolicy, &is, is_nodes, 1024, 0, 0));
	IS(is == want && is_nodes[0] == nodes, "policy %x nodes %lx of thread %s", is, is_nodes[0], leader ? "1" : "2");
	return 0;
}

static void huge(int flags)
{
	unsigned *m = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	for (int i = 0; m != MAP_FAILED && i < 1 << 20; i++)
		m[i] = i * 7;
	ready();
	for (unsigned n = 0; !moved(); n++)
		if (m != MAP_FAILED)
			m[n % 4096 * 256] = n % 4096 * 256 * 7, usleep(100);
	if (m == MAP_FAILED) {
		IS(0, "no huge pages");
		return;
	}
	for (int i = 0; i < 1 << 20; i++)
		if (m[i] != i * 7) {
			IS(0, "word %d is %u", i, m[i]);
			break;
		}
	IS(strstr(vmflags(m), " ht"), "its pages are small: %s", vmflags(m));
}

static void huge_private(void) { huge(MAP_PRIVATE); }
static void huge_shared(void) { huge(MAP_SHARED); }

static void mempolicy(void) { beside(memory_of, "", 0); }

static void limits(void)
{
	struct rlimit want[RLIM_NLIMITS], is;

	for (int i = 0; i < RLIM_NLIMITS; i++) {
		MUST(getrlimit(i, &want[i]));
		if (want[i].rlim_cur == RLIM_INFINITY || want[i].rlim_cur > 1000)
			want[i].rlim_cur = i == RLIMIT_AS || i == RLIMIT_DATA || i == RLIMIT_STACK ? 3ul << 30 : want[i].rlim_cur;
	}
	want[RLIMIT_CORE] = (struct rlimit){100, want[RLIMIT_CORE].rlim_max < 200 ? want[RLIMIT_CORE].rlim_max : 200};
	want[RLIMIT_NOFILE] = (struct rlimit){222, 333};
	for (int i = 0; i < RLIM_NLIMITS; i++)
		setrlimit(i, &want[i]), MUST(getrlimit(i, &want[i]));
	await_move();
	for (int i = 0; i < RLIM_NLIMITS; i++) {
		MUST(getrlimit(i, &is));
		IS(is.rlim_cur == want[i].rlim_cur && is.rlim_max == want[i].rlim_max, "limit %d is %lx %lx, not %lx %lx ", i, is.rlim_cur, is.rlim_max, want[i].rlim_cur, want[i].rlim_max);
	}
}

static void umask_(void)
{
	umask(027);
	await_move();
	IS(umask(0) == 027, "another umask");
}

static void credentials(void)
{
	char before[1000] = "", after[1000] = "";
	const char *words[] = {"Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "SigBlk:", "SigIgn:", "SigCgt:",
		"THP_enabled:", "Speculation_Store_Bypass:", "SpeculationIndirectBranch:", "x86_Thread_features:", "untag_mask:", "Umask:", "NSsid:", "NSpgid:"};

	for (int i = 0; i < sizeof words / sizeof *words; i++)
		strcat(before, words[i]), strcat(before, field(words[i]));
	await_move();
	for (int i = 0; i < sizeof words / sizeof *words; i++)
		strcat(after, words[i]), strcat(after, field(words[i]));
	IS(!strcmp(before, after), "before %s after %s", before, after);
}

static void filter(void)
{
	struct { unsigned short c; unsigned char t, f; unsigned k; } p[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, SYS_getppid}, {6, 0, 0, 0x50000 | EXDEV}, {6, 0, 0, 0x7fff0000}};
	struct { unsigned short n; void *f; } prog = {4, p};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	MUST(syscall(SYS_seccomp, 1, 0, &prog));
	await_move();
	errno = 0;
	IS(syscall(SYS_getppid) == -1 && errno == EXDEV, "the filter is gone");
}

static void robust(void)
{
	void *before, *head;
	size_t size;

	MUST(syscall(SYS_get_robust_list, 0, &before, &size));
	await_move();
	MUST(syscall(SYS_get_robust_list, 0, &head, &size));
	IS(head == before, "another list of robust futexes");
}

static void tid_address(void)
{
	static int word;
	void *is = 0;

	syscall(SYS_set_tid_address, &word);
	await_move();
	MUST(prctl(PR_GET_TID_ADDRESS, &is, 0, 0, 0));
	IS(is == &word, "another address");
}

static void membarrier(void)
{
	long before;

	MUST(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
	MUST(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0));
	before = syscall(SYS_membarrier, 512, 0, 0);
	await_move();
	IS(syscall(SYS_membarrier, 512, 0, 0) == before, "%lx, not %lx", syscall(SYS_membarrier, 512, 0, 0), before);
}

static void sequence(void) /* rseq(2), which the C library has registered */
{
	extern const ptrdiff_t __rseq_offset;
	volatile struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);

	await_move();
	for (int i = 0; i < 2; i++) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(i, &set);
		if (!sched_setaffinity(0, sizeof set, &set))
			IS(area->cpu_id == i, "processor %d, said to be %d", i, area->cpu_id);
	}
}

static int values[40], count;
static void note(int s, siginfo_t *i, void *u) { values[count++ % 40] = i->si_value.sival_int; }

static void pending(void)
{
	struct sigaction act = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536}, is;
	sigset_t all, old;

	MUST(sigaltstack(&stack, 0));
	MUST(sigaction(SIGRTMIN, &act, 0));
	signal(SIGTERM, SIG_IGN);
	sigfillset(&all);
	MUST(sigprocmask(SIG_BLOCK, &all, &old));
	for (int i = 0; i < 10; i++)
		MUST(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 1000 + i}));
	await_move();
	sigprocmask(SIG_SETMASK, &old, 0);
	for (int i = 0; i < 10; i++)
		IS(values[i] == 1000 + i, "signal %d has %d", i, values[i]);
	sigaltstack(0, &is);
	IS(is.ss_sp == stack.ss_sp && is.ss_size == 65536, "another stack for signals");
	sigaction(SIGTERM, 0, &act);
	IS(act.sa_handler == SIG_IGN, "SIGTERM is not ignored");
}

static void altstack_disarm(void) /* SS_AUTODISARM */
{
	stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536, .ss_flags = 1u << 31}, is;

	MUST(sigaltstack(&stack, 0));
	await_move();
	sigaltstack(0, &is);
	IS(is.ss_flags == stack.ss_flags, "flags %x", is.ss_flags);
}

static void advised(int advice)
{
	char *m, before[400];

	m = mmap(0, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	m[5000] = 1;
	if (madvise(m, 8 << 20, advice)) {
		printf("cannot advise %d\n", advice);
		bad = 1;
	}
	strcpy(before, vmflags(m));
	await_move();
	IS(!strcmp(before, vmflags(m)), "%s was %s", vmflags(m), before);
}

static void dontfork(void) { advised(MADV_DONTFORK); }
static void wipeonfork(void) { advised(MADV_WIPEONFORK); }
static void dontdump(void) { advised(MADV_DONTDUMP); }
static void hugepage(void) { advised(MADV_HUGEPAGE); }
static void nohugepage(void) { advised(MADV_NOHUGEPAGE); }
static void mergeable(void) { advised(MADV_MERGEABLE); }
static void sequential(void) { advised(MADV_SEQUENTIAL); }
static void random_(void) { advised(MADV_RANDOM); }

static void locked(void)
{
	char *m = mmap(0, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), before[400];

	MUST(mlock(m, 64 << 10));
	strcpy(before, vmflags(m));
	await_move();
	IS(!strcmp(before, vmflags(m)), "%s was %s", vmflags(m), before);
}

static void noreserve(void)
{
	char *m = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), before[400];

	strcpy(before, vmflags(m));
	await_move();
	IS(!strcmp(before, vmflags(m)), "%s was %s", vmflags(m), before);
}

static void growsdown(void)
{
	char *m = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0), before[400];

	m[100] = 1;
	strcpy(before, vmflags(m));
	await_move();
	IS(!strcmp(before, vmflags(m)), "%s was %s", vmflags(m), before);
}

static void protection_key(void)
{
	int key = pkey_alloc(0, 0);
	char *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), before[400];

	if (key < 0) {
		await_move();
		return;
	}
	MUST(pkey_mprotect(m, 4096, PROT_READ | PROT_WRITE, key));
	strcpy(before, vmflags(m));
	await_move();
	IS(!strcmp(before, vmflags(m)) && pkey_alloc(0, 0) != key, "%s was %s", vmflags(m), before);
}

static void program_break(void)
{
	char *before = MUST(syscall(SYS_brk, 0)) + (char *)0, *top = (char *)syscall(SYS_brk, before + 100000);

	top[-1] = 5;
	await_move();
	IS((char *)syscall(SYS_brk, 0) == top && top[-1] == 5, "another break");
	IS((char *)syscall(SYS_brk, top + 100000) == top + 100000, "it does not grow");
}

static int deep(int n)
{
	volatile char room[10000];

	room[0] = n;
	return n ? deep(n - 1) + room[0] * 0 : 0;
}

static void stack(void)
{
	await_move();
	IS(deep(500) == 0, "the stack does not grow");
}

static void memfd_sealed(void)
{
	int f = MUST(memfd_create("sealed", MFD_ALLOW_SEALING));

	MUST(ftruncate(f, 4096));
	MUST(fcntl(f, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
	await_move();
	IS(fcntl(f, F_GET_SEALS) == (F_SEAL_GROW | F_SEAL_SHRINK), "seals %x", fcntl(f, F_GET_SEALS));
}

static void memfd_future(void)
{
	int f = MUST(memfd_create("future", MFD_ALLOW_SEALING));
	char *m;

	MUST(ftruncate(f, 4096));
	m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
	MUST(fcntl(f, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
	*m = 4;
	await_move();
	IS(fcntl(f, F_GET_SEALS) == F_SEAL_FUTURE_WRITE && *m == 4, "seals %x", fcntl(f, F_GET_SEALS));
	*m = 5;
}

static void memfd_noexec(void)
{
	int f = MUST(memfd_create("noexec", 8 /* MFD_NOEXEC_SEAL */)), before = fcntl(f, F_GET_SEALS);

	await_move();
	IS(fcntl(f, F_GET_SEALS) == before, "seals %x were %x", fcntl(f, F_GET_SEALS), before);
}

static void sysv(void)
{
	int m = MUST(shmget(IPC_PRIVATE, 8192, 0600)), s = MUST(semget(IPC_PRIVATE, 2, 0600)), q = MUST(msgget(IPC_PRIVATE, 0600));
	struct { long type; char text[20]; } msg = {7, "a message"};
	struct sembuf up = {1, 3, 0};
	char *at = shmat(m, 0, 0);

	strcpy(at, "shared");
	MUST(semop(s, &up, 1));
	MUST(msgsnd(q, &msg, 20, 0));
	await_move();
	memset(&msg, 0, sizeof msg);
	IS(!strcmp(at, "shared") && semctl(s, 1, GETVAL) == 3 && msgrcv(q, &msg, 20, 7, IPC_NOWAIT) == 20 && !strcmp(msg.text, "a message"), "lost");
	struct shmid_ds ds;
	shmctl(m, IPC_STAT, &ds);
	IS(ds.shm_nattch == 1, "%lu attached", ds.shm_nattch);
	shmctl(m, IPC_RMID, 0);
	semctl(s, 0, IPC_RMID);
	msgctl(q, IPC_RMID, 0);
}

static void sem_undo(void)
{
	int s = MUST(semget(IPC_PRIVATE, 1, 0600)), st, fds[2];
	pid_t child;

	MUST(pipe(fds));
	if (!(child = fork())) {
		char c;
		struct sembuf up = {0, 3, SEM_UNDO};
		MUST(semop(s, &up, 1));
		MUST(write(fds[1], "", 1));
		while (!moved())
			usleep(10000);
		(void)c;
		_exit(0);
	}
	char c;
	MUST(read(fds[0], &c, 1));
	await_move();
	waitpid(child, &st, 0);
	IS(semctl(s, 0, GETVAL) == 3, "it is %d: what a move loses was kept", semctl(s, 0, GETVAL));
	semctl(s, 0, IPC_RMID);
}

static void shm_doomed(void)
{
	int m = MUST(shmget(IPC_PRIVATE, 8192, 0600));
	char *at = shmat(m, 0, 0);

	shmctl(m, IPC_RMID, 0);
	strcpy(at, "doomed");
	await_move();
	IS(!strcmp(at, "doomed"), "lost");
}

static void pidfds(void)
{
	int status;
	pid_t p = MUST(fork());

	if (!p) {
		while (!moved())
			usleep(10000);
		usleep(300000);
		_exit(5);
	}
	int f = MUST(syscall(SYS_pidfd_open, p, 0));
	await_move();
	IS(poll(&(struct pollfd){f, POLLIN}, 1, 5000) == 1, "its end is not told");
	siginfo_t i = {0};
	IS(waitid(3, f, &i, WEXITED) == 0 && i.si_status == 5, "status %d", i.si_status);
	(void)status;
}

static void pidfd_gone(void)
{
	pid_t p = MUST(fork());

	if (!p)
		_exit(6);
	int f = MUST(syscall(SYS_pidfd_open, p, 0));
	waitpid(p, 0, 0);
	await_move();
	IS(poll(&(struct pollfd){f, POLLIN}, 1, 0) == 1, "its end is not told");
	IS(syscall(SYS_pidfd_send_signal, f, 0, 0, 0) < 0 && errno == ESRCH, "it lives");
}

static void zombie(void)
{
	int s;
	pid_t p = MUST(fork());

	if (!p)
		_exit(77);
	await_move();
	IS(waitpid(p, &s, 0) == p && WEXITSTATUS(s) == 77, "status %x", s);
}

static void aio(void)
{
	unsigned long c = 0;
	struct { uint64_t data; uint32_t key, rw; uint16_t op; int16_t prio; uint32_t fd; uint64_t buf, n, off, r; uint32_t flags, resfd; } io = {.data = 42, .op = 1}, *list[1] = {&io};
	struct { uint64_t data, obj; int64_t res, res2; } e[2] = {0};
	static char text[] = "by aio";

	MUST(syscall(SYS_io_setup, 16, &c));
	io.fd = MUST(open("aio.file", O_RDWR | O_CREAT, 0600));
	io.buf = (uintptr_t)text, io.n = 6;
	MUST(syscall(SYS_io_submit, c, 1, list));
	usleep(100000);
	await_move();
	IS(syscall(SYS_io_getevents, c, 1, 2, e, &(struct timespec){1}) == 1 && e[0].data == 42 && e[0].res == 6, "the event is lost: %ld %ld", (long)e[0].data, (long)e[0].res);
	IS(syscall(SYS_io_submit, c, 1, list) == 1 && syscall(SYS_io_getevents, c, 1, 2, e, &(struct timespec){1}) == 1, "no more I/O");
}

static void pipe_size(void)
{
	int fds[2];

	MUST(pipe(fds));
	MUST(fcntl(fds[0], F_SETPIPE_SZ, 1 << 18));
	await_move();
	IS(fcntl(fds[1], F_GETPIPE_SZ) == 1 << 18, "%d", fcntl(fds[1], F_GETPIPE_SZ));
}

static void session(void)
{
	int s;
	pid_t p = MUST(fork());

	if (!p) {
		pid_t sid = setsid(), q = fork();
		if (!q) {
			setpgid(0, 0);
			while (!moved())
				usleep(10000);
			_exit(getsid(0) != sid || getpgid(0) != getpid());
		}
		waitpid(q, &s, 0);
		_exit(s || getsid(0) != sid);
	}
	await_move();
	waitpid(p, &s, 0);
	IS(s == 0, "another session or group");
}

static void namespace_file(void)
{
	const char *kinds[] = {"net", "mnt", "pid", "ipc", "uts", "user", "cgroup", "time", "pid_for_children", "time_for_children"};
	int fds[10];
	char path[40];

	for (int i = 0; i < 10; i++)
		sprintf(path, "/proc/self/ns/%s", kinds[i]), fds[i] = MUST(open(path, O_RDONLY));
	await_move();
	for (int i = 0; i < 10; i++) {
		struct stat a, b;
		sprintf(path, "/proc/self/ns/%s", kinds[i]);
		IS(fstat(fds[i], &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino, "namespace %s is another one", kinds[i]);
	}
}

static void process_file(void) /* of a process that has ended */
{
	char path[40];
	pid_t child = MUST(fork());

	if (!child)
		_exit(0);
	sprintf(path, "/proc/%d/status", child);
	int f = MUST(open(path, O_RDONLY));
	waitpid(child, 0, 0);
	await_move();
	IS(read(f, path, 10) < 0 && errno == ESRCH, "it can be read");
}

static void process_folder(void)
{
	int f = MUST(open("/proc/self/task", O_RDONLY | O_DIRECTORY));
	char path[20];

	await_move();
	sprintf(path, "%d", getpid());
	IS(faccessat(f, path, F_OK, 0) == 0, "it leads elsewhere");
}

static int share(void *a)
{
	while (!moved())
		usleep(10000);
	_exit(0);
}

static void shared_files(void) /* CLONE_FILES without CLONE_THREAD */
{
	static char room[65536];
	pid_t child = MUST(clone(share, room + 60000, CLONE_FILES | SIGCHLD, 0));
	int s;

	await_move();
	waitpid(child, &s, 0);
	IS(WIFEXITED(s) && WEXITSTATUS(s) == 0, "status %x", s);
}

#define FAILS(call, how) IS((call) < 0 && errno == how, "%s did not fail so", #call)

/* denied: the system call itself refuses state that cannot be carried. */
static void denied(void)
{
	unsigned long nodes = 1;
	char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (int again = 0; again < 2; again++) {
		FAILS(prctl(PR_SET_TSC, PR_TSC_SIGSEGV), EINVAL);
		FAILS(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0), EINVAL);
		FAILS(prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0), EINVAL);
		FAILS(prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0), EINVAL);
		FAILS(prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0), EINVAL);
		FAILS(prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0), EINVAL);
		FAILS(prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, m), EINVAL);
		FAILS(prctl(62 /* PR_SCHED_CORE */, 1, 0, 0, 0), EINVAL);
		FAILS(prctl(57 /* PR_SET_IO_FLUSHER */, 1, 0, 0, 0), EINVAL);
		FAILS(prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), EINVAL);
		FAILS(prctl(0x53564d41 /* PR_SET_VMA */, 0, m, 8192, "a name"), EINVAL);
		FAILS(prctl(78 /* PR_FUTEX_HASH */, 1, 16, 0, 0), EINVAL);
		FAILS(syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18), EINVAL);
		FAILS(syscall(SYS_arch_prctl, 0x1012 /* ARCH_SET_CPUID */, 0), EINVAL);
		FAILS(syscall(SYS_arch_prctl, 0x5001 /* ARCH_SHSTK_ENABLE */, 1), EINVAL);
		FAILS(mlockall(MCL_FUTURE), EPERM);
		FAILS(mlockall(MCL_CURRENT | 4 /* MCL_ONFAULT */), EPERM);
		FAILS(mlock2(m, 8192, MLOCK_ONFAULT), EINVAL);
		FAILS(syscall(SYS_mbind, m, 8192, 3 /* MPOL_INTERLEAVE */, &nodes, 64, 0), EPERM);
		FAILS(syscall(450 /* set_mempolicy_home_node */, m, 8192, 0, 0), ENOSYS);
		FAILS(syscall(462 /* mseal */, m, 4096, 0), ENOSYS);
		FAILS(syscall(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | 8 /* MAP_DROPPABLE */, -1, 0), EINVAL);
		FAILS(madvise(m, 4096, 102 /* MADV_GUARD_INSTALL */), EINVAL);
		FAILS(syscall(444 /* landlock_create_ruleset */, 0, 0, 1), ENOSYS);
		FAILS(syscall(446 /* landlock_restrict_self */, -1, 0), ENOSYS);
		FAILS(syscall(447 /* memfd_secret */, 0), ENOSYS);
		FAILS(syscall(453 /* map_shadow_stack */, 0, 4096, 0), ENOSYS);
		FAILS(syscall(460 /* lsm_set_self_attr */, 100, 0, 0, 0), ENOSYS);
		FAILS(fcntl(open("/tmp", O_RDONLY), F_NOTIFY, DN_CREATE | DN_MULTISHOT), EINVAL);
		FAILS(fcntl(open("/tmp/leased", O_CREAT | O_RDWR, 0600), F_SETLEASE, F_WRLCK), EINVAL);
		FAILS(syscall(SYS_modify_ldt, 1, m, 16), ENOSYS);
		FAILS(syscall(SYS_io_uring_setup, 1, m), EPERM);
		FAILS(syscall(SYS_perf_event_open, m, 0, -1, -1, 0), EPERM);
		FAILS(syscall(SYS_bpf, 0, m, 0), EPERM);
		FAILS(syscall(SYS_userfaultfd, 0), EPERM);
		FAILS(syscall(SYS_fanotify_init, 0, 0), EPERM);
		FAILS(syscall(SYS_add_key, "user", "a key", "x", 1, -3), EPERM);
		FAILS(syscall(SYS_keyctl, 1, 0), EPERM);
		FAILS(syscall(SYS_unshare, 0x80 /* CLONE_NEWTIME */), EPERM);
		FAILS(syscall(SYS_unshare, CLONE_NEWUSER), EPERM);
		FAILS(syscall(438 /* pidfd_getfd */, 0, 0, 0), EPERM);
		FAILS(syscall(440 /* process_madvise */, 0, 0, 0, 0, 0), EPERM);
		FAILS(syscall(SYS_kcmp, 1, 1, 0, 0, 0), EPERM);
		FAILS(syscall(451 /* cachestat */, 0, m, m, 0), ENOSYS);
		FAILS(syscall(455 /* futex_wait */, m, 0, 0, 0, 0, 0), ENOSYS);
		FAILS(personality(READ_IMPLIES_EXEC), EPERM);
		FAILS(personality(MMAP_PAGE_ZERO), EPERM);
		FAILS(socket(AF_VSOCK, SOCK_STREAM, 0), EAFNOSUPPORT);
		FAILS(socket(AF_ALG, SOCK_SEQPACKET, 0), EAFNOSUPPORT);
		FAILS(socketpair(30 /* AF_TIPC */, SOCK_STREAM, 0, (int[2]){0}), EAFNOSUPPORT);
		FAILS(socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP), EPROTONOSUPPORT);
		FAILS(socket(AF_INET6, 6 /* SOCK_DCCP */, 33 /* IPPROTO_DCCP */), EPROTONOSUPPORT);
		FAILS(socket(AF_NETLINK, SOCK_RAW, 12 /* NETLINK_NETFILTER */), EPROTONOSUPPORT);
		FAILS(socket(AF_NETLINK, SOCK_RAW, 21 /* NETLINK_CRYPTO */), EPROTONOSUPPORT);
		FAILS(prctl(PR_SET_SECCOMP, 1, 0, 0, 0), EINVAL);
		FAILS(prctl(PR_SET_SECUREBITS, 1, 0, 0, 0), EPERM);
		FAILS(sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}), EPERM);
		FAILS(syscall(SYS_sched_setattr, 0, &(struct attr){sizeof(struct attr), 6 /* SCHED_DEADLINE */, 0, 0, 0, 10000000, 20000000, 30000000}, 0), EPERM);
		if (!again)
			await_move();
	}
	IS(getrandom(m, 4096, 0) == 4096 && madvise(m, 4096, MADV_NORMAL) == 0 && mlock2(m, 4096, 0) == 0 && prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0, "what is carried is refused");
}

#define CASE(x) {#x, x}
static const struct state all[] = {CASE(affinity), CASE(io_priority), CASE(timer_slack), CASE(sched_batch), CASE(sched_idle), CASE(sched_slice),
	CASE(nice_and_name), CASE(coredump_filter), CASE(oom_score), CASE(dumpable), CASE(subreaper), CASE(thp_disable), CASE(pdeathsig), CASE(no_new_privs),
	CASE(keepcaps), CASE(persona), CASE(mempolicy), CASE(huge_private), CASE(huge_shared), CASE(limits), CASE(umask_), CASE(credentials), CASE(filter),
	CASE(robust), CASE(tid_address), CASE(membarrier), CASE(sequence), CASE(pending), CASE(altstack_disarm), CASE(dontfork), CASE(wipeonfork), CASE(dontdump),
	CASE(hugepage), CASE(nohugepage), CASE(mergeable), CASE(sequential), CASE(random_), CASE(locked),
	CASE(noreserve), CASE(growsdown), CASE(protection_key), CASE(program_break), CASE(stack), CASE(memfd_sealed), CASE(memfd_future), CASE(memfd_noexec),
	CASE(sysv), CASE(sem_undo), CASE(shm_doomed), CASE(pidfds), CASE(pidfd_gone), CASE(zombie), CASE(aio), CASE(pipe_size), CASE(session), CASE(namespace_file), CASE(process_file), CASE(process_folder), CASE(shared_files), CASE(denied)};

int main(int argc, char **argv)
{
	(void)now;
	pthread_barrier_init(&both, 0, 2);
	return run(argc, argv, all, sizeof all / sizeof *all);
}
