/* A program for measuring moves: says of every time it stood still for longer
   than 10 ms when that ended and how long it was. Between two looks at the clock
   it sleeps a millisecond. It has BYTES of memory that no compression makes
   smaller, and writes to RATE bytes of it a second, page after page. With a
   third argument it says so to that file and keeps nothing else open, as a
   container without anybody outside has to.

   still BYTES RATE [FILE] */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	const size_t page = 4096;
	const double least = 0.01, most = 0.1;
	size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 0) : 0, at = 0;
	double rate = argc > 2 ? atof(argv[2]) : 0, owed = 0;
	uint64_t seed = 88172645463325252ULL;
	char *memory = NULL;

	if (argc > 3) {
		int in = open("/dev/null", O_RDWR), out = open(argv[3], O_WRONLY | O_CREAT | O_APPEND, 0644);
		if (in < 0 || out < 0)
			return 1;
		dup2(in, 0);
		dup2(out, 1);
		dup2(in, 2);
		close(in);
		close(out);
	}
	if (bytes) {
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			return 1;
		for (size_t i = 0; i + 8 <= bytes; i += 8) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			*(uint64_t *)(memory + i) = seed;
		}
	}
	puts("START");
	fflush(stdout);
	for (double last = now();;) {
		struct timespec nap = {0, 1000000};
		nanosleep(&nap, NULL);
		double t = now();
		if (t - last > least) {
			printf("GAP %.6f %.6f\n", t, t - last);
			fflush(stdout);
		}
		for (owed += rate * (t - last < most ? t - last : most); bytes && owed >= page; owed -= page) {
			memory[at]++;
			at = (at + page) % (bytes - bytes % page);
		}
		last = t;
	}
}
