package kernelstate

import "slices"

// processes has the rows of processes and threads.
var processes = slices.Concat([]Row{
	{"thread", "CPU affinity (sched_setaffinity), as far as the target has those CPUs", Carried, "", "affinity"},
	{"thread", "I/O priority (ioprio_set)", Carried, "", "io_priority"},
	{"thread", "timer slack (PR_SET_TIMERSLACK)", Carried, "", "timer_slack"},
	{"thread", "personality", Carried, "", "persona"},
	{"thread", "policy for NUMA nodes (set_mempolicy, numactl), as far as the target has them", Carried, "", "mempolicy"},
	{"thread", "nice value and name", Carried, "", "nice_and_name"},
	{"thread", "SCHED_BATCH, reset on fork", Carried, "", "sched_batch"},
	{"thread", "SCHED_IDLE", Carried, "", "sched_idle"},
	{"thread", "time slice (sched_setattr)", Carried, "", "sched_slice"},
	{"thread", "PR_SET_PDEATHSIG", Carried, "", "pdeathsig"},
	{"thread", "PR_SET_NO_NEW_PRIVS", Carried, "", "no_new_privs"},
	{"thread", "PR_SET_KEEPCAPS", Carried, "", "keepcaps"},
	{"thread", "users, groups, signal masks", Carried, "", "credentials"},
	{"thread", "capabilities, supplementary groups, fsuid", Carried, "", "capabilities"},
	{"thread", "seccomp filters", Carried, "", "filter"},
	{"thread", "robust futexes", Carried, "", "robust"},
	{"thread", "set_tid_address", Carried, "", "tid_address"},
	{"thread", "rseq", Carried, "", "sequence"},
	{"thread", "sigaltstack", Carried, "", "altstack_disarm"},
	{"process", "PR_SET_DUMPABLE", Carried, "", "dumpable"},
	{"process", "PR_SET_CHILD_SUBREAPER", Carried, "", "subreaper"},
	{"process", "PR_SET_THP_DISABLE", Carried, "", "thp_disable"},
	{"process", "oom_score_adj", Carried, "", "oom_score"},
	{"process", "coredump_filter", Carried, "", "coredump_filter"},
	{"process", "resource limits", Carried, "", "limits"},
	{"process", "umask", Carried, "", "umask_"},
	{"process", "membarrier registrations", Carried, "", "membarrier"},
	{"process", "pending signals with their values, handlers", Carried, "", "pending"},
	{"process", "session and process group", Carried, "", "session"},
	{"process", "child that has ended and was not waited for", Carried, "", "zombie"},
	{"process", "a root of its own (chroot)", Carried, "", "chrooted"},
	{"process", "files and terminals open beyond its root", Carried, "", "terminal"},
	{"process", "files it has open together with another (CLONE_FILES)", Carried, "", "shared_files"},
	{"process", "asynchronous I/O (io_setup), events not yet taken", Carried, "", "aio"},
	{"process", "pidfd, also of a process that has ended", Carried, "", "pidfds"},
	{"process", "pidfd of a process that was waited for", Carried, "", "pidfd_gone"},
	{"process", "descriptors of namespaces", Carried, "", "namespace_file"},
	{"process", "files in /proc of itself", Carried, "", "process_folder"},
	{"process", "files in /proc of a process that has ended", Carried, "", "process_file"},
}, memoryRows, heldBack, refusedCalls)

// memoryRows has the rows of memory, System V IPC and pipes.
var memoryRows = []Row{
	{"memory", "MADV_DONTFORK", Carried, "", "dontfork"},
	{"memory", "MADV_WIPEONFORK", Carried, "", "wipeonfork"},
	{"memory", "MADV_DONTDUMP", Carried, "", "dontdump"},
	{"memory", "MADV_HUGEPAGE", Carried, "", "hugepage"},
	{"memory", "MADV_NOHUGEPAGE", Carried, "", "nohugepage"},
	{"memory", "MADV_MERGEABLE", Carried, "", "mergeable"},
	{"memory", "MADV_SEQUENTIAL", Carried, "", "sequential"},
	{"memory", "MADV_RANDOM", Carried, "", "random_"},
	{"memory", "mlock", Carried, "", "locked"},
	{"memory", "MAP_HUGETLB, private", Carried, "", "huge_private"},
	{"memory", "MAP_HUGETLB, shared", Carried, "", "huge_shared"},
	{"memory", "MAP_NORESERVE", Carried, "", "noreserve"},
	{"memory", "MAP_GROWSDOWN", Carried, "", "growsdown"},
	{"memory", "protection keys", Carried, "", "protection_key"},
	{"memory", "break (brk)", Carried, "", "program_break"},
	{"memory", "growth of the stack", Carried, "", "stack"},
	{"memory", "memfd, seals", Carried, "", "memfd_sealed"},
	{"memory", "memfd, F_SEAL_FUTURE_WRITE", Carried, "", "memfd_future"},
	{"memory", "memfd, MFD_NOEXEC_SEAL", Carried, "", "memfd_noexec"},
	{"System V IPC", "shared memory, semaphores, messages", Carried, "", "sysv"},
	{"System V IPC", "shared memory that is removed and attached", Carried, "", "shm_doomed"},
	{"System V IPC", "SEM_UNDO", Differs, "the kernel does not say what a process would undo: after a move nothing is undone when it ends; release semaphores before", "sem_undo"},
	{"pipe", "size (F_SETPIPE_SZ)", Carried, "", "pipe_size"},
}

// heldBack has the rows for which a move waits or is refused.
var heldBack = []Row{
	{"process", "child by vfork or posix_spawn that has not yet run its program", Waits, "it ends by itself, mostly in a millisecond", "vforked"},
	{"process", "first thread that has ended while others run", Refused, "let it wait for the others (pthread_join)", "first_gone"},
	{"process", "traced by another (ptrace)", Refused, "end the debugger", "traced"},
	{"process", "memory together with another process (CLONE_VM)", Refused, "make threads, or processes by fork", "shared_memory"},
	{"process", "working folder together with another process (CLONE_FS)", Refused, "make threads, or processes by fork", "shared_folder"},
	{"process", "pidfd of a thread (PIDFD_THREAD)", Refused, "open one of the process", "thread_handle"},
	{"process", "listener of a seccomp filter, and descriptors of any other kind that is not listed as carried", Refused, "close it, or do without it", "listener"},
	{"pipe", "packet mode (O_DIRECT)", Refused, "open the pipe without it", "packets"},
	{"POSIX message queue", "open in a program", Refused, "close and unlink it, or use queues of System V or sockets", "message_queue"},
	{"POSIX message queue", "left behind by programs", Refused, "unlink it (mq_unlink)", "queue_left"},
}

// refusedCalls has the rows of state that no program of a container can have.
var refusedCalls = func() (rows []Row) {
	const vm = "the call fails as on a kernel without it; take `--kind vm` for a program that needs it"
	for _, name := range []string{
		"PR_SET_TSC", "PR_MCE_KILL", "PR_SET_SPECULATION_CTRL", "PR_SET_MDWE", "PR_SET_MEMORY_MERGE", "PR_THP_DISABLE_EXCEPT_ADVISED",
		"PR_SET_SYSCALL_USER_DISPATCH", "PR_SCHED_CORE", "PR_SET_IO_FLUSHER", "PR_SET_PTRACER", "PR_SET_VMA", "PR_FUTEX_HASH", "any other option of prctl that sets something",
		"ARCH_REQ_XCOMP_PERM (AMX)", "ARCH_SET_CPUID", "ARCH_SHSTK_ENABLE, map_shadow_stack", "F_NOTIFY (use inotify)", "F_SETLEASE", "modify_ldt", "landlock", "lsm_set_self_attr", "strict seccomp",
		"securebits", "SCHED_FIFO, SCHED_RR, SCHED_DEADLINE",
		"bpf", "perf_event_open", "io_uring", "userfaultfd", "fanotify", "keyrings", "namespaces of its own (unshare, clone)",
		"pidfd_getfd, process_madvise, kcmp", "personality that makes memory executable or maps the first page (READ_IMPLIES_EXEC, MMAP_PAGE_ZERO)",
		"system calls newer than Linux 6.1 (cachestat, futex_wait and others)",
	} {
		rows = append(rows, Row{"process", name, Denied, vm, "denied"})
	}
	for _, name := range []string{
		"mlockall with MCL_FUTURE or MCL_ONFAULT", "MLOCK_ONFAULT", "policies of mappings for NUMA nodes (mbind; use set_mempolicy or numactl)", "mseal", "memfd_secret",
		"MAP_DROPPABLE (getrandom works without it)", "guard regions (MADV_GUARD_INSTALL; use mprotect)",
	} {
		rows = append(rows, Row{"memory", name, Denied, vm, "denied"})
	}
	for _, name := range []string{"families but Unix, Internet and netlink (AF_VSOCK, AF_ALG and others)", "Internet protocols but TCP and UDP (SCTP, DCCP, L2TP and others)",
		"netlink but about links, sockets and devices (NETLINK_NETFILTER, NETLINK_CRYPTO and others)"} {
		rows = append(rows, Row{"socket", name, Denied, vm, "denied"})
	}
	return rows
}()
