/* State of open files, and of files in memory. */
#include <dirent.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/xattr.h>
#include <termios.h>

static char *own(const char *what)
{
	static char path[4][100];
	static int n;
	char *p = path[n++ % 4];

	snprintf(p, sizeof *path, "/tmp/%s.%s", name, what);
	return p;
}

/* Flags of open files, by fcntl(F_GETFL) and of the descriptor. */
static void flags(void)
{
	static const int want[] = {O_APPEND, O_SYNC, O_DSYNC, O_NONBLOCK, O_NOATIME, O_PATH, O_APPEND | O_NONBLOCK | O_SYNC};
	enum { N = sizeof want / sizeof *want };
	int fds[N], before[N], cloexec = MUST(open("/dev/null", O_RDWR | O_CLOEXEC)), plain = MUST(open("/dev/null", O_RDWR));

	for (int i = 0; i < N; i++) {
		fds[i] = MUST(open(own("flags"), O_CREAT | O_RDWR | want[i], 0644));
		before[i] = MUST(fcntl(fds[i], F_GETFL));
	}
	await_move();
	for (int i = 0; i < N; i++)
		IS(fcntl(fds[i], F_GETFL) == before[i], "flags %o are %o", before[i], fcntl(fds[i], F_GETFL));
	IS(fcntl(cloexec, F_GETFD) == FD_CLOEXEC && fcntl(plain, F_GETFD) == 0, "FD_CLOEXEC");
}

/* Direct I/O on a file of the job. */
static void direct(void)
{
	int fd = open("direct.dat", O_CREAT | O_RDWR | O_DIRECT, 0644);

	if (fd < 0) /* not on this file system */
		fd = MUST(open("direct.dat", O_CREAT | O_RDWR, 0644));
	int before = fcntl(fd, F_GETFL);
	await_move();
	IS(fcntl(fd, F_GETFL) == before, "flags %o are %o", before, fcntl(fd, F_GETFL));
}

/* An offset that dup and fork share, and a second open does not. */
static void offsets(void)
{
	int fd = MUST(open(own("offset"), O_CREAT | O_RDWR, 0644)), copy = MUST(dup(fd)), other = MUST(open(own("offset"), O_RDWR));
	int back[2];
	pid_t child;

	MUST(ftruncate(fd, 1 << 20));
	MUST(lseek(fd, 4711, SEEK_SET));
	MUST(lseek(other, 17, SEEK_SET));
	MUST(pipe(back));
	if ((child = MUST(fork())) == 0) {
		while (!moved())
			usleep(20000);
		lseek(fd, 100, SEEK_CUR);
		write(back[1], "x", 1);
		_exit(0);
	}
	await_move();
	char b;
	MUST(read(back[0], &b, 1));
	IS(lseek(copy, 0, SEEK_CUR) == 4811, "the offset is %ld", (long)lseek(copy, 0, SEEK_CUR));
	IS(lseek(other, 0, SEEK_CUR) == 17, "the other offset is %ld", (long)lseek(other, 0, SEEK_CUR));
	waitpid(child, 0, 0);
}

/* The owner and the signal of a file's events. */
static void owners(void)
{
	int p[2], q[2];
	struct f_owner_ex thread = {F_OWNER_TID, gettid()}, got;

	MUST(pipe(p));
	MUST(pipe(q));
	MUST(fcntl(p[0], F_SETOWN, getpid()));
	MUST(fcntl(p[0], F_SETSIG, SIGRTMIN + 3));
	MUST(fcntl(q[0], F_SETOWN_EX, &thread));
	signal(SIGRTMIN + 3, SIG_IGN);
	MUST(fcntl(p[0], F_SETFL, O_ASYNC | O_NONBLOCK));
	await_move();
	IS(fcntl(p[0], F_GETOWN) == getpid(), "F_GETOWN is %d", fcntl(p[0], F_GETOWN));
	IS(fcntl(p[0], F_GETSIG) == SIGRTMIN + 3, "F_GETSIG is %d", fcntl(p[0], F_GETSIG));
	IS(fcntl(p[0], F_GETFL) & O_ASYNC, "O_ASYNC is lost");
	IS(fcntl(q[0], F_GETOWN_EX, &got) == 0 && got.type == F_OWNER_TID && got.pid == gettid(), "F_GETOWN_EX is %d %d", got.type, got.pid);
}

/* O_ASYNC still sends its signal. */
static volatile int heard;
static void hear(int s) { (void)s; heard++; }
static void async(void)
{
	int s[2];

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	signal(SIGIO, hear);
	MUST(fcntl(s[0], F_SETOWN, getpid()));
	MUST(fcntl(s[0], F_SETFL, O_ASYNC));
	await_move();
	heard = 0;
	MUST(write(s[1], "x", 1));
	for (int i = 0; i < 50 && !heard; i++)
		usleep(10000);
	IS(heard, "no SIGIO came");
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* The position in a folder of the job that is being read. */
static void reading(void)
{
	static char seen[40][20];
	int n = 0;
	char path[100];

	MUST(mkdir("reading.dir", 0755));
	for (int i = 0; i < 30; i++) {
		snprintf(path, sizeof path, "reading.dir/file%d", i);
		close(MUST(open(path, O_CREAT | O_WRONLY, 0644)));
	}
	DIR *d = opendir("reading.dir");
	struct dirent *e;
	char raw[200];
	int fd = dirfd(d);

	for (long k = syscall(SYS_getdents64, fd, raw, sizeof raw); k > 0;) {
		for (long at = 0; at < k;) {
			struct dirent64 *f = (void *)(raw + at);

			if (f->d_name[0] == 'f')
				strcpy(seen[n++], f->d_name);
			at += f->d_reclen;
		}
		if (k && n >= 10)
			break;
		k = syscall(SYS_getdents64, fd, raw, sizeof raw);
	}
	await_move();
	while ((e = readdir(d)))
		if (e->d_name[0] == 'f' && n < 40)
			strcpy(seen[n++], e->d_name);
	IS(n == 30, "it read %d names of 30", n);
	qsort(seen, n, sizeof *seen, by_name);
	for (int i = 1; i < n; i++)
		IS(strcmp(seen[i - 1], seen[i]), "%s came twice", seen[i]);
}

/* Seals and content of a memfd. */
static void seals(void)
{
	int fd = MUST(memfd_create("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	char b[6] = "";

	MUST(write(fd, "sealed", 6));
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
	MUST(lseek(fd, 3, SEEK_SET));
	await_move();
	IS(fcntl(fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), "seals are %x", fcntl(fd, F_GET_SEALS));
	IS(lseek(fd, 0, SEEK_CUR) == 3 && pread(fd, b, 6, 0) == 6 && !memcmp(b, "sealed", 6), "its content is lost");
	IS(pwrite(fd, "x", 1, 0) == -1, "it can be written");
}

/* Data in pipes, their sizes, and named pipes. */
static void pipes(void)
{
	int p[2], q[2];
	char b[8000], *fifo = own("fifo");

	MUST(pipe(p));
	MUST(pipe2(q, O_NONBLOCK));
	MUST(fcntl(p[1], F_SETPIPE_SZ, 1 << 18));
	MUST(fcntl(q[1], F_SETPIPE_SZ, 4096));
	memset(b, 'p', sizeof b);
	MUST(write(p[1], b, sizeof b));
	MUST(write(q[1], "q", 1));
	MUST(mkfifo(fifo, 0640));
	int f = MUST(open(fifo, O_RDWR | O_NONBLOCK));
	MUST(write(f, "named", 5));
	await_move();
	IS(fcntl(p[0], F_GETPIPE_SZ) == 1 << 18 && fcntl(q[0], F_GETPIPE_SZ) == 4096, "sizes are %d and %d", fcntl(p[0], F_GETPIPE_SZ), fcntl(q[0], F_GETPIPE_SZ));
	int waits = 0;
	IS(ioctl(p[0], FIONREAD, &waits) == 0 && waits == sizeof b, "%d bytes wait", waits);
	IS(read(q[0], b, 10) == 1 && b[0] == 'q' && read(q[0], b, 10) == -1 && errno == EAGAIN, "the small pipe");
	IS(read(f, b, 10) == 5 && !memcmp(b, "named", 5), "the named pipe");
	IS(read(f, b, 10) == -1 && errno == EAGAIN, "the named pipe has more");
}

/* Counters of eventfds. */
static void counters(void)
{
	int plain = MUST(eventfd(7, EFD_NONBLOCK));
	uint64_t v;

	await_move();
	IS(read(plain, &v, 8) == 8 && v == 7, "the counter is %lu", (unsigned long)v);
}

/* Signals read by signalfd. */
static void signals(void)
{
	sigset_t set;
	struct signalfd_siginfo got;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGRTMIN + 1);
	sigprocmask(SIG_BLOCK, &set, 0);
	int fd = MUST(signalfd(-1, &set, SFD_NONBLOCK));
	MUST(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 5}));
	await_move();
	IS(read(fd, &got, sizeof got) == sizeof got && got.ssi_signo == (unsigned)SIGRTMIN + 1 && got.ssi_int == 5, "signal %d", got.ssi_signo);
	kill(getpid(), SIGUSR1);
	IS(read(fd, &got, sizeof got) == sizeof got && got.ssi_signo == SIGUSR1, "a later signal");
}

/* The files watched by epoll, and how. */
static void epolls(void)
{
	int e = MUST(epoll_create1(EPOLL_CLOEXEC)), outer = MUST(epoll_create1(0)), once[2], edge[2], level[2];
	struct epoll_event ev, got[8];

	MUST(pipe(once));
	MUST(pipe(edge));
	MUST(pipe(level));
	ev = (struct epoll_event){EPOLLIN | EPOLLONESHOT, {.u64 = 0x100000001}};
	MUST(epoll_ctl(e, EPOLL_CTL_ADD, once[0], &ev));
	MUST(write(once[1], "x", 1));
	MUST(epoll_wait(e, got, 8, 0)); /* it is disarmed now */
	ev = (struct epoll_event){EPOLLIN | EPOLLET, {.u64 = 2}};
	MUST(epoll_ctl(e, EPOLL_CTL_ADD, edge[0], &ev));
	ev = (struct epoll_event){EPOLLIN, {.u64 = 0x300000003}};
	MUST(epoll_ctl(e, EPOLL_CTL_ADD, level[0], &ev));
	ev = (struct epoll_event){EPOLLIN, {.u64 = 4}};
	MUST(epoll_ctl(outer, EPOLL_CTL_ADD, e, &ev));
	await_move();
	IS(epoll_wait(e, got, 8, 0) == 0, "event %lx came though nothing happened", (long)got[0].data.u64);
	MUST(write(level[1], "x", 1));
	IS(epoll_wait(outer, got, 8, 100) == 1 && got[0].data.u64 == 4, "nothing comes by the outer set");
	IS(epoll_wait(e, got, 8, 100) == 1 && got[0].data.u64 == 0x300000003, "the level's event is lost");
	MUST(write(edge[1], "x", 1));
	IS(epoll_wait(e, got, 8, 100) == 2, "the edge's event is lost");
	IS(epoll_wait(e, got, 8, 0) == 1, "the edge's event comes twice");
	ev = (struct epoll_event){EPOLLIN | EPOLLONESHOT, {.u64 = 9}};
	IS(epoll_ctl(e, EPOLL_CTL_MOD, once[0], &ev) == 0 && epoll_wait(e, got, 8, 0) == 2, "the one that came once cannot be armed again");
}

/* A terminal of its own, its typed input and its settings. */
static void terminals(void)
{
	int m = MUST(posix_openpt(O_RDWR | O_NOCTTY)), s;
	struct winsize size = {31, 97, 5, 6}, got;
	struct termios t, u;
	char b[20];

	MUST(grantpt(m));
	MUST(unlockpt(m));
	s = MUST(open(ptsname(m), O_RDWR | O_NOCTTY));
	MUST(tcgetattr(s, &t));
	t.c_lflag &= ~(ECHO | ICANON);
	t.c_cc[VMIN] = 3;
	t.c_cc[VTIME] = 7;
	cfsetspeed(&t, B38400);
	MUST(tcsetattr(s, TCSANOW, &t));
	MUST(ioctl(m, TIOCSWINSZ, &size));
	MUST(write(m, "typed", 5));
	await_move();
	IS(tcgetattr(s, &u) == 0 && u.c_lflag == t.c_lflag && u.c_cc[VMIN] == 3 && u.c_cc[VTIME] == 7 && u.c_cflag == t.c_cflag, "its settings");
	IS(ioctl(s, TIOCGWINSZ, &got) == 0 && !memcmp(&got, &size, sizeof size), "its size");
	IS(read(s, b, 20) == 5 && !memcmp(b, "typed", 5), "what was typed");
	IS(write(s, "out", 3) == 3 && read(m, b, 20) == 3, "what is written");
}

/* Files watched by inotify, and later events. */
static void watches(void)
{
	int fd = MUST(inotify_init1(IN_NONBLOCK));
	char b[4096], path[100];

	mkdir(own("watched"), 0755);
	MUST(inotify_add_watch(fd, own("watched"), IN_CREATE | IN_DELETE));
	await_move();
	snprintf(path, sizeof path, "%s/new", own("watched"));
	close(MUST(open(path, O_CREAT | O_WRONLY, 0644)));
	long n = read(fd, b, sizeof b);
	struct inotify_event *e = (void *)b;
	IS(n > 0 && e->mask == IN_CREATE && !strcmp(e->name, "new"), "event %x", n > 0 ? e->mask : 0);
}

/* Files of /proc and devices. */
static void special(void)
{
	int status = MUST(open("/proc/self/status", O_RDONLY)), null = MUST(open("/dev/null", O_RDWR)), zero = MUST(open("/dev/zero", O_RDONLY));
	int full = MUST(open("/dev/full", O_WRONLY)), rnd = MUST(open("/dev/urandom", O_RDONLY)), dir = MUST(open("/proc/self/fd", O_RDONLY | O_DIRECTORY));
	char b[200] = "", want[20];

	await_move();
	IS(pread(status, b, 199, 0) > 0 && !strncmp(b, "Name:\tfiles", 11), "it reads %.20s", b);
	IS(write(null, "x", 1) == 1 && read(zero, b, 1) == 1 && b[0] == 0 && read(rnd, b, 8) == 8, "devices");
	IS(write(full, "x", 1) == -1 && errno == ENOSPC, "/dev/full");
	snprintf(want, sizeof want, "%d", null);
	IS(faccessat(dir, want, F_OK, AT_SYMLINK_NOFOLLOW) == 0, "/proc/self/fd");
}

static int same_time(const struct timespec *a, const struct timespec *b) { return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec; }

/* Attributes of files in memory: times, permissions, holes, links, extended attributes. */
static void attributes(void)
{
	static const char *const where[] = {"/tmp", "/dev/shm", "/run"};
	char path[3][4][80], b[20];
	struct stat before[3][4], after;
	struct timespec times[2] = {{1234567890, 123456789}, {987654321, 987654321}};

	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < 4; k++)
			snprintf(path[i][k], sizeof path[i][k], "%s/attributes%d", where[i], k);
		int fd = open(path[i][0], O_CREAT | O_RDWR, 0600);
		if (fd < 0) {
			path[i][0][0] = 0;
			continue;
		}
		MUST(pwrite(fd, "end", 3, 100 << 20)); /* mostly a hole */
		MUST(fchmod(fd, 06751));
		fsetxattr(fd, "user.kept", "value", 5, 0);
		close(fd);
		MUST(link(path[i][0], path[i][1]));
		MUST(symlink("nowhere", path[i][2]));
		MUST(mkfifo(path[i][3], 0620));
		MUST(utimensat(AT_FDCWD, path[i][0], times, 0));
		MUST(utimensat(AT_FDCWD, path[i][2], times, AT_SYMLINK_NOFOLLOW));
		for (int k = 0; k < 4; k++)
			MUST(lstat(path[i][k], &before[i][k]));
	}
	await_move();
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < 4 && path[i][0][0]; k++) {
			struct stat *was = &before[i][k];

			if (lstat(path[i][k], &after)) {
				IS(0, "%s is gone", path[i][k]);
				continue;
			}
			IS(after.st_mode == was->st_mode && after.st_uid == was->st_uid && after.st_gid == was->st_gid && after.st_size == was->st_size &&
			   after.st_nlink == was->st_nlink, "%s is %o %d:%d %ld %ld", path[i][k], after.st_mode, after.st_uid, after.st_gid, (long)after.st_size, (long)after.st_nlink);
			IS(same_time(&after.st_mtim, &was->st_mtim), "%s was changed at %ld", path[i][k], (long)after.st_mtim.tv_sec);
			if (k == 0) {
				IS(after.st_blocks <= was->st_blocks + 16, "%s has %ld blocks for %ld", path[i][k], (long)after.st_blocks, (long)was->st_blocks);
				IS(getxattr(path[i][k], "user.kept", b, 20) == 5 || getxattr("/tmp", "user.none", b, 20) == -1, "attributes of %s", path[i][k]);
			}
		}
	}
}

/* A current directory that was removed. */
static void removed(void)
{
	struct stat st;
	char b[100];

	pid_t child = MUST(fork());
	if (!child) {
		MUST(mkdir(own("cwd"), 0755));
		MUST(chdir(own("cwd")));
		MUST(rmdir(own("cwd")));
		for (;;)
			pause();
	}
	usleep(100000);
	await_move();
	snprintf(b, sizeof b, "/proc/%d/cwd", child);
	IS(stat(b, &st) == 0 && st.st_nlink == 0 && S_ISDIR(st.st_mode), "the folder is another");
	kill(child, SIGKILL);
	waitpid(child, 0, 0);
}

/* A removed file, one whose other name remains, and mappings of both. */
static void unlinked(void)
{
	int fd = MUST(open(own("gone"), O_CREAT | O_RDWR, 0640)), copy = MUST(open(own("gone"), O_RDONLY));
	char b[8] = "", *m;

	MUST(write(fd, "gone", 4));
	m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(m == MAP_FAILED ? -1 : 0);
	MUST(unlink(own("gone")));
	await_move();
	m[0] = 'G';
	IS(pread(copy, b, 4, 0) == 4 && !memcmp(b, "Gone", 4), "it reads '%s'", b);
	IS(lseek(fd, 0, SEEK_CUR) == 4, "the offset");
}

/* What keeps it from moving, until the file "let" is there. Not among those that move. */
static void until_let(void)
{
	close(MUST(open("has", O_CREAT | O_WRONLY, 0644)));
	while (access("let", F_OK))
		usleep(20000);
}

static void semaphore(void)
{
	int fd = MUST(eventfd(3, EFD_NONBLOCK | EFD_SEMAPHORE));

	until_let();
	close(fd);
	await_move();
}

static void jobpipe(void)
{
	MUST(mkfifo("jobpipe.fifo", 0644));
	int fd = MUST(open("jobpipe.fifo", O_RDWR));

	until_let();
	close(fd);
	await_move();
}

static void unread(void)
{
	int fd = MUST(inotify_init1(IN_NONBLOCK));
	char b[4096];

	MUST(inotify_add_watch(fd, ".", IN_CREATE));
	close(MUST(open("unread.event", O_CREAT | O_WRONLY, 0644)));
	until_let();
	IS(read(fd, b, sizeof b) > 0, "no event");
	MUST(inotify_rm_watch(fd, 1));
	read(fd, b, sizeof b);
	await_move();
}

static void halfread(void)
{
	char b[200];
	struct stat st;

	mkdir(own("dir"), 0755);
	for (int i = 0; i < 30; i++) {
		snprintf(b, sizeof b, "%s/file%d", own("dir"), i);
		close(MUST(open(b, O_CREAT | O_WRONLY, 0644)));
	}
	int fd = MUST(open(own("dir"), O_RDONLY | O_DIRECTORY));
	MUST(syscall(SYS_getdents64, fd, b, sizeof b));
	until_let();
	while (MUST(syscall(SYS_getdents64, fd, b, sizeof b)))
		;
	await_move();
	IS(syscall(SYS_getdents64, fd, b, sizeof b) == 0 && fstat(fd, &st) == 0, "a folder that was read has more");
}

static const struct state all[] = {
	{"flags", flags}, {"direct", direct}, {"offsets", offsets}, {"owners", owners}, {"async", async}, {"reading", reading}, {"seals", seals},
	{"pipes", pipes}, {"counters", counters}, {"signals", signals}, {"epolls", epolls}, {"terminals", terminals}, {"watches", watches},
	{"special", special}, {"attributes", attributes}, {"removed", removed}, {"unlinked", unlinked},
	{"semaphore", semaphore}, {"jobpipe", jobpipe}, {"unread", unread}, {"halfread", halfread},
};
MAIN(all)
