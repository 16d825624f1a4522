/* Common code of the programs in this folder, each compiled after this header. Without
   arguments a program lists its cases, one per line. With a case's name it makes that state,
   creates the file CASE.ready, waits for the file "go", and reports what has changed. It exits
   with 0 if nothing has. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(x) ({ long r_ = (long)(x); if (r_ < 0) { printf("cannot begin: %s: %s\n", #x, strerror(errno)); exit(2); } r_; })

static const char *name; /* of the case */
static int bad;

/* IS reports a wrong value. */
#define IS(right, ...) do { if (!(right)) { printf(__VA_ARGS__); printf(" (errno: %s)\n", strerror(errno)); bad = 1; } } while (0)

__attribute__((unused)) static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void ready(void)
{
	char file[100];

	snprintf(file, sizeof file, "%s.ready", name);
	close(MUST(open(file, O_CREAT | O_WRONLY, 0644)));
}

static int moved(void) { return access("go", F_OK) == 0; }

/* await_move returns when the program has been moved. */
static void __attribute__((unused)) await_move(void)
{
	ready();
	while (!moved())
		usleep(20000);
}

struct state { const char *name; void (*check)(void); };

static int run(int argc, char **argv, const struct state *all, int count)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	for (int i = 0; i < count; i++) {
		if (argc < 2) {
			puts(all[i].name);
		} else if (!strcmp(argv[1], all[i].name)) {
			name = all[i].name;
			all[i].check();
			return bad;
		}
	}
	return argc < 2 ? 0 : 3;
}
#define MAIN(all) int main(int argc, char **argv) { return run(argc, argv, all, sizeof all / sizeof *all); }
