// The first process of a container that tests dump and restore. It makes its root and one
// object of each kind that a process can have, and opens a TCP connection to the test. It
// writes to /out/beat all the time, and answers commands from the connection:
//   check        "ok", or what has changed
//   open WHAT    makes an object: "ok" or an error
//   pid          its PID in the container
//   grow MIB     allocates so much more memory
// Usage: subject ROOT ADDRESS PORT [keep]; with keep, descriptor 3, which is from outside,
// stays open.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
  dprintf(2, "subject: %s: %s\n", what, strerror(errno));
  _exit(1);
}
#define MUST(x) ({ long r_ = (long)(x); if (r_ < 0) die(#x); r_; })

// Its objects.
enum { pages = 512, page = 4096 };
static struct shared { volatile long child, thread; } *counts;
static unsigned char *memory, *segment, *grown;
static char *doomed;
static size_t grown_size;
static int pipes[2], masters[2], pair[2], ghost, locked, flocked, event, poller, timer, door;
static char slave[64];
static pid_t child, zombie;
static volatile long ticks;
static timer_t rings;

static void on_alarm(int s) { (void)s; ticks++; }
static void *thread(void *p) {
  for (;;) { counts->thread++; usleep(2000); }
  return p;
}
static unsigned char pattern(size_t i) { return (unsigned char)(i * 2654435761u >> 13); }

static void enter(const char *root, int keep) {
  MUST(mount(0, "/", 0, MS_REC | MS_PRIVATE, 0));
  MUST(chdir(root));
  MUST(mount("proc", "proc", "proc", 0, 0));
  MUST(mount("dev", "dev", "tmpfs", 0, 0));
  mkdir("dev/pts", 0755), mkdir("dev/shm", 0755);
  MUST(mount("devpts", "dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620"));
  MUST(mount("shm", "dev/shm", "tmpfs", 0, 0));
  MUST(mount("tmp", "tmp", "tmpfs", 0, 0));
  struct { const char *name; int minor; } nodes[] = {{"dev/null", 3}, {"dev/zero", 5}, {"dev/urandom", 9}};
  for (int i = 0; i < 3; i++) MUST(mknod(nodes[i].name, S_IFCHR | 0666, makedev(1, nodes[i].minor)));
  MUST(symlink("pts/ptmx", "dev/ptmx"));
  MUST(syscall(SYS_pivot_root, ".", "."));
  MUST(umount2(".", MNT_DETACH));
  MUST(chdir("/"));
  MUST(close_range(0, 2, 0));
  MUST(close_range(keep ? 4 : 3, ~0U, 0));
  MUST(open("/dev/null", O_RDWR));
  MUST(open("/tmp/log", O_RDWR | O_CREAT | O_APPEND, 0600));
  MUST(dup(1));
  MUST(setsid());
}

static void gather(void) {
  counts = mmap(0, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memory = mmap(0, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (size_t i = 0; i < pages * page; i++) memory[i] = pattern(i);

  int id = MUST(shmget(IPC_PRIVATE, page, IPC_CREAT | 0600));
  segment = shmat(id, 0, 0);
  memcpy(segment, "segment", 8);

  MUST(pipe(pipes));
  MUST(write(pipes[1], "in the pipe", 11));
  MUST(openpty(&masters[0], &masters[1], slave, 0, 0));
  MUST(write(masters[0], "typed\n", 6));
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
  MUST(write(pair[1], "between", 7));
  struct sockaddr_un at = {AF_UNIX, "/tmp/door"};
  door = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
  MUST(bind(door, (void *)&at, sizeof at));
  MUST(listen(door, 1));

  ghost = MUST(open("/tmp/ghost", O_RDWR | O_CREAT, 0600));
  MUST(write(ghost, "nameless", 8));
  MUST(unlink("/tmp/ghost"));
  struct flock l = {.l_type = F_WRLCK};
  locked = MUST(open("/tmp/locked", O_RDWR | O_CREAT, 0600));
  MUST(fcntl(locked, F_SETLK, &l));
  flocked = MUST(open("/tmp/flocked", O_RDWR | O_CREAT, 0600));
  MUST(flock(flocked, LOCK_EX));

  event = MUST(eventfd(7, 0));
  poller = MUST(epoll_create1(0));
  struct epoll_event e = {EPOLLIN, {.u64 = 99}};
  MUST(epoll_ctl(poller, EPOLL_CTL_ADD, event, &e));
  timer = MUST(timerfd_create(CLOCK_MONOTONIC, 0));
  struct itimerspec far = {{0, 0}, {3600, 0}}, often = {{0, 20000000}, {0, 20000000}};
  MUST(timerfd_settime(timer, 0, &far, 0));
  signal(SIGALRM, on_alarm);
  struct sigevent by = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
  MUST(timer_create(CLOCK_MONOTONIC, &by, &rings));
  MUST(timer_settime(rings, 0, &often, 0));

  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGRTMIN + 1);
  MUST(sigprocmask(SIG_BLOCK, &held, 0));
  MUST(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){42}));

  int beat = MUST(open("/out/beat", O_RDWR | O_CREAT, 0600));
  child = MUST(fork());
  if (!child) {
    setsid();
    for (;;) {
      counts->child++;
      MUST(pwrite(beat, (void *)&counts->child, sizeof counts->child, 0));
      usleep(2000);
    }
  }
  zombie = MUST(fork());
  if (!zombie) _exit(5);
  siginfo_t gone;
  MUST(waitid(P_PID, zombie, &gone, WEXITED | WNOWAIT));
  pthread_t t;
  if (pthread_create(&t, 0, thread, 0)) die("thread");
}

// Each of these returns what is wrong with one object, or 0.
static const char *memory_wrong(void) {
  for (size_t i = 0; i < pages * page; i++)
    if (memory[i] != pattern(i)) return "memory";
  for (size_t i = 0; i < grown_size; i++)
    if (grown[i] != pattern(i)) return "grown memory";
  if (doomed && strcmp(doomed, "doomed")) return "System V segment that is to end";
  return memcmp(segment, "segment", 8) ? "System V segment" : 0;
}
static const char *queue_wrong(int to, int from, const char *want, const char *name) {
  char got[64] = "";
  struct pollfd p = {from, POLLIN, 0};
  if (poll(&p, 1, 1000) != 1 || read(from, got, sizeof got - 1) != (ssize_t)strlen(want) || strcmp(got, want)) return name;
  return write(to, want, strlen(want)) == (ssize_t)strlen(want) ? 0 : name;
}
static const char *files_wrong(void) {
  char got[16] = "";
  struct stat st;
  if (pread(ghost, got, 15, 0) != 8 || strcmp(got, "nameless") || fstat(ghost, &st) || st.st_nlink) return "deleted file";
  if (access("/tmp/ghost", F_OK) == 0) return "deleted file's name";
  int again = open("/tmp/flocked", O_RDWR);
  int free_ = flock(again, LOCK_EX | LOCK_NB) == 0;
  close(again);
  if (free_) return "flock";
  pid_t p = fork();
  if (!p) {
    struct flock l = {.l_type = F_WRLCK};
    _exit(fcntl(open("/tmp/locked", O_RDWR), F_SETLK, &l) == 0);
  }
  int status;
  if (waitpid(p, &status, 0) != p || status) return "record lock";
  return stat("/tmp/door", &st) || !S_ISSOCK(st.st_mode) ? "socket's name" : 0;
}
static const char *events_wrong(void) {
  struct epoll_event e;
  if (epoll_wait(poller, &e, 1, 0) != 1 || e.data.u64 != 99) return "epoll";
  uint64_t n, seven = 7;
  if (read(event, &n, 8) != 8 || n != 7 || write(event, &seven, 8) != 8) return "eventfd";
  struct itimerspec left;
  if (timerfd_gettime(timer, &left) || left.it_value.tv_sec < 3000 || left.it_value.tv_sec > 3600) return "timerfd";
  return 0;
}
static int grows(volatile long *n) {
  long before = *n;
  for (int i = 0; i < 500; i++) {
    if (*n != before) return 1;
    usleep(10000);
  }
  return 0;
}
static const char *life_wrong(void) {
  if (!grows(&ticks)) return "timer";
  if (!grows(&counts->child) || getpgid(child) != child) return "child";
  if (!grows(&counts->thread)) return "thread";
  siginfo_t s = {0};
  struct timespec now = {0, 0};
  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGRTMIN + 1);
  if (sigtimedwait(&held, &s, &now) != SIGRTMIN + 1 || s.si_value.sival_int != 42) return "pending signal";
  sigqueue(getpid(), SIGRTMIN + 1, (union sigval){42});
  if (waitid(P_PID, zombie, &s, WEXITED | WNOWAIT | WNOHANG) || s.si_status != 5) return "ended child";
  return 0;
}
static const char *wrong(void) {
  const char *w;
  if ((w = memory_wrong()) || (w = files_wrong()) || (w = events_wrong()) || (w = life_wrong())) return w;
  if ((w = queue_wrong(pipes[1], pipes[0], "in the pipe", "pipe"))) return w;
  if ((w = queue_wrong(masters[0], masters[1], "typed\n", "terminal"))) return w;
  return queue_wrong(pair[1], pair[0], "between", "socket pair");
}

static const char *answer(const char *fmt, ...) {
  static char text[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return text;
}

// A child that tells is what it was asked to be. That can take long on a busy machine.
static int there[2];
static void tell(void) {
  if (write(there[1], "", 1) != 1) _exit(1);
  for (;;) pause();
}
static int told(void) {
  char byte;
  close(there[1]);
  int r = read(there[0], &byte, 1) == 1 ? 0 : -1;
  close(there[0]);
  return r;
}
// obtain makes an object that may prevent a dump.
static const char *obtain(const char *what) {
  long r = -1;
  if (!strcmp(what, "device memory")) {
    // A block device replaces InfiniBand's: CRIU treats them alike.
    mkdir("/dev/infiniband", 0755);
    MUST(mknod("/dev/infiniband/uverbs0", S_IFBLK | 0600, makedev(7, 0)));
    int fd = MUST(open("/dev/infiniband/uverbs0", O_RDONLY));
    r = mmap(0, page, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0;
    close(fd);
  } else if (!strcmp(what, "device")) {
    MUST(mknod("/dev/fuse", S_IFCHR | 0600, makedev(10, 229)));
    r = open("/dev/fuse", O_RDWR);
  } else if (!strcmp(what, "io_uring")) {
    char params[120] = {0};
    r = syscall(SYS_io_uring_setup, 4, params);
  } else if (!strcmp(what, "counter")) {
    struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_TASK_CLOCK};
    r = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
  } else if (!strcmp(what, "cipher")) {
    r = socket(AF_ALG, SOCK_SEQPACKET, 0);
  } else if (!strcmp(what, "vsock")) {
    r = socket(AF_VSOCK, SOCK_STREAM, 0);
  } else if (!strcmp(what, "multipath")) {
    r = socket(AF_INET, SOCK_STREAM, 262);
  } else if (!strcmp(what, "large ghost")) {
    r = open("/tmp/large", O_RDWR | O_CREAT, 0600);
    char *zero = calloc(1, 1 << 20);
    for (int i = 0; i < 65 && r >= 0; i++)
      if (write(r, zero, 1 << 20) < 0) return strerror(errno);
    free(zero);
    unlink("/tmp/large");
  } else if (!strcmp(what, "waiting connection")) {
    struct sockaddr_in at = {AF_INET, htons(7777), {htonl(INADDR_LOOPBACK)}, {0}};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    r = bind(s, (void *)&at, sizeof at) || listen(s, 4) || connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof at);
  } else if (!strcmp(what, "doomed segment")) {
    int id = shmget(IPC_PRIVATE, page, IPC_CREAT | 0600);
    doomed = shmat(id, 0, 0);
    r = doomed == (void *)-1 ? -1 : shmctl(id, IPC_RMID, 0);
    if (!r) strcpy(doomed, "doomed");
  } else if (!strcmp(what, "tracer")) {
    if (pipe(there)) return strerror(errno);
    pid_t p = fork();
    if (!p) {
      if (!ptrace(PTRACE_SEIZE, child, 0, 0)) tell();
      _exit(1);
    }
    r = told();
  } else if (!strcmp(what, "nested namespace")) {
    if (pipe(there)) return strerror(errno);
    pid_t p = fork();
    if (!p) {
      unshare(CLONE_NEWPID);
      if (!fork()) tell();
      for (;;) pause();
    }
    r = told();
  } else if (!strcmp(what, "stopped child")) {
    pid_t p = fork();
    if (!p) for (;;) usleep(1000);
    kill(p, SIGSTOP);
    r = waitpid(p, 0, WUNTRACED) == p ? 0 : -1;
  } else if (!strcmp(what, "waiting parent")) {
    pid_t p = fork();
    if (!p) {
      if (!vfork()) for (;;) pause();
      _exit(0);
    }
    usleep(100000);
    r = 0;
  } else if (!strncmp(what, "file ", 5)) {
    r = open(what + 5, O_RDONLY);
  } else {
    return "no such thing";
  }
  return r < 0 ? strerror(errno) : "ok";
}

static const char *obey(char *line) {
  line[strcspn(line, "\n")] = 0;
  if (!strcmp(line, "check")) {
    const char *w = wrong();
    return w ? w : "ok";
  }
  if (!strcmp(line, "pid")) return answer("%d", getpid());
  if (!strncmp(line, "open ", 5)) return obtain(line + 5);
  if (!strncmp(line, "grow ", 5)) {
    grown_size = atol(line + 5) << 20;
    grown = mmap(0, grown_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED) return strerror(errno);
    for (size_t i = 0; i < grown_size; i++) grown[i] = pattern(i);
    return "ok";
  }
  return "no such word";
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  signal(SIGPIPE, SIG_IGN);
  enter(argv[1], argc > 4);
  gather();
  struct sockaddr_in at = {AF_INET, htons(atoi(argv[3])), {inet_addr(argv[2])}, {0}};
  int s = MUST(socket(AF_INET, SOCK_STREAM, 0));
  while (connect(s, (void *)&at, sizeof at)) {
    if (errno != EINTR) die("connect");
    close(s);
    s = MUST(socket(AF_INET, SOCK_STREAM, 0));
  }
  char line[256];
  for (;;) {
    size_t n = 0;
    char c = 0;
    while (n < sizeof line - 1 && c != '\n') {
      ssize_t r = read(s, &c, 1);
      if (r < 0 && errno == EINTR) continue;
      if (r <= 0) die("read from the test");
      line[n++] = c;
    }
    line[n] = 0;
    char out[600];
    int len = snprintf(out, sizeof out, "%s\n", obey(line));
    for (int at = 0; at < len;) {
      ssize_t w = write(s, out + at, len - at);
      if (w < 0 && errno == EINTR) continue;
      if (w < 0) die("write to the test");
      at += w;
    }
  }
}
