package kernelstate

// again describes waits whose elapsed time neither CRIU nor the kernel reports.
const again = "the time-out may begin again, so it can be late by the time already waited, never early"

// times has the rows of clocks, timers and waits.
var times = []Row{
	{"process", "processor time used (clock, CLOCK_PROCESS_CPUTIME_ID, getrusage, times, of threads and of children)", Differs,
		"begins again at 0, so a difference over a move is wrong: measure with CLOCK_MONOTONIC. RLIMIT_CPU counts from the move on", "processor_time"},
	{"clock", "CLOCK_MONOTONIC, CLOCK_BOOTTIME", Carried, "go on; the time for which a move suspends a process is not in them", "processor_time"},
	{"system call that waits", "nanosleep, clock_nanosleep that return the time left (sleep)", Carried, "for the rest of the time, up to a millisecond late; one that is moved twice, by the time between the moves", "sleeps"},
	{"system call that waits", "nanosleep, clock_nanosleep without the time left (usleep)", Differs, again, "nanosleeps"},
	{"system call that waits", "clock_nanosleep to an absolute time", Carried, "", "absolute_sleeps"},
	{"system call that waits", "clock_nanosleep of a relative time", Differs, again, "clock_nanosleeps"},
	{"system call that waits", "poll", Differs, again, "polls"},
	{"system call that waits", "epoll_wait, epoll_pwait, epoll_pwait2", Differs, again, "epolls"},
	{"system call that waits", "select", Differs, again, "selects"},
	{"system call that waits", "pselect", Differs, again, "pselects"},
	{"system call that waits", "ppoll", Differs, again, "ppolls"},
	{"system call that waits", "futex with a relative time-out", Differs, again, "futexes"},
	{"system call that waits", "sigtimedwait", Differs, again, "signals"},
	{"system call that waits", "semtimedop", Differs, again, "semaphores"},
	{"system call that waits", "recv and send with SO_RCVTIMEO or SO_SNDTIMEO", Differs, again, "receives"},
	{"system call that waits", "accept with SO_RCVTIMEO", Differs, again, "accepts"},
	{"system call that waits", "msgrcv", Carried, "", "queues"},
	{"system call that waits", "pause, sigsuspend", Carried, "", "pauses"},
	{"system call that waits", "read of inotify", Carried, "", "watches"},
	{"timerfd", "periodic, expired and not read", Carried, "", "timerfd_periodic"},
	{"timerfd", "long period, expired and not read", Carried, "", "timerfd_slow"},
	{"timerfd", "period of a millisecond", Carried, "", "timerfd_fast"},
	{"timerfd", "CLOCK_REALTIME", Carried, "", "timerfd_realtime"},
	{"timerfd", "CLOCK_BOOTTIME", Carried, "", "timerfd_boottime"},
	{"timerfd", "expires once", Carried, "", "timerfd_once"},
	{"timer", "timer_create with a signal", Carried, "", "signal_timers"},
	{"timer", "setitimer(ITIMER_REAL)", Carried, "", "interval_timer"},
	{"timer", "timer_create for a thread (SIGEV_THREAD, SIGEV_THREAD_ID)", Carried, "", "thread_timer"},
	{"timer", "timer_create for the first thread of a process (SIGEV_THREAD_ID)", Refused, "let it signal the process (SIGEV_SIGNAL), or another thread", "first_thread_timer"},
	{"timer", "timer_create(CLOCK_PROCESS_CPUTIME_ID), ITIMER_PROF, ITIMER_VIRTUAL", Carried, "", "processor_timers"},
	{"process", "stopped by SIGSTOP", Carried, "", "stopped"},
	{"process", "stopped by SIGTSTP", Carried, "", "stopped_tty"},
	{"process", "stopped by SIGTTIN or SIGTTOU", Refused, "found only during the dump: continue it, or stop it by SIGSTOP", "stopped_by_terminal"},
}
