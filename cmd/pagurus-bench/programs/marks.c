/* A program for measuring moves that it asks for itself. It works in phases of 5 s: for 3.5 s it fills 64 MiB again and again,
   which it does not need after that, and then only has 64 MiB that it never changes. When there is a file AWAY it asks to be moved away, once. It says of every
   time it stood still for longer than 10 ms when that ended and how long it was, but not of the time for which it asks.

   marks plain|marks|scratch AWAY      without marks; with marks; with marks, and the 64 MiB as scratch memory */
#include <pagurus.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64 << 20, ONCE = 350, STEPS = 10 * ONCE, PHASE = 5000 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fill(uint64_t *memory, size_t from, size_t to)
{
	static uint64_t seed = 88172645463325252ULL;
	for (size_t i = from / 8; i < to / 8; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		memory[i] = seed;
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int marks = strcmp(argv[1], "plain") != 0, asked = 0;
	uint64_t *kept = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *work = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (kept == MAP_FAILED || work == MAP_FAILED)
		return 1;
	fill(kept, 0, SIZE);
	fill(work, 0, SIZE);
	if (strcmp(argv[1], "scratch") == 0 && pagurus_scratch(work, SIZE) != PAGURUS_OK)
		printf("scratch: %s\n", pagurus_text());
	puts("START");
	fflush(stdout);
	double last = now();
	for (int step = 0;; step = (step + 1) % PHASE) {
		struct timespec nap = {0, 1000000};
		nanosleep(&nap, NULL);
		if (step == 0 && marks)
			pagurus_not_now(1);
		if (step < STEPS)
			fill(work, (size_t)SIZE / ONCE * (step % ONCE) / 8 * 8, (size_t)SIZE / ONCE * (step % ONCE + 1) / 8 * 8);
		if (step == STEPS && marks)
			pagurus_cheap_now();
		double t = now();
		if (t - last > 0.01) {
			printf("GAP %.6f %.6f\n", t, t - last);
			fflush(stdout);
		}
		last = t;
		if (!asked && step % 20 == 0 && access(argv[2], F_OK) == 0) {
			asked = pagurus_move(PAGURUS_ME, PAGURUS_AWAY, 0) == PAGURUS_OK;
			printf("ASKED %d %s\n", asked, pagurus_text());
			fflush(stdout);
			last = now();
		}
	}
}
