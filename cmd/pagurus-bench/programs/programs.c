/* Small programs that use their memory in ways unlike each other, for the bench
   of predictions. The first argument names one; it runs until it is ended. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1 << 20)
#define PAGE 4096

static uint64_t seed = 88172645463325252ull;

static uint64_t any(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *room(size_t bytes)
{
	char *p = malloc(bytes);
	if (!p)
		exit(2);
	for (size_t i = 0; i < bytes; i += 8)
		*(uint64_t *)(p + i) = any();
	return p;
}

/* paced waits so that done MiB have taken no less than done/rate seconds */
static void paced(double begun, double done, double rate)
{
	double early = begun + done / rate - now();
	if (early > 0)
		usleep(early * 1e6);
}

/* --- for fitting --- */

static void idle(void)
{
	room(40 * MIB);
	for (;;)
		sleep(60);
}

/* writes through 48 MiB, page after page, 8 MiB a second */
static void sweep(void)
{
	size_t size = 48 * MIB;
	char *p = room(size);
	double begun = now();
	for (uint64_t n = 1;; n++) {
		*(uint64_t *)(p + n * PAGE % size) = n;
		if (n % 64 == 0)
			paced(begun, n * (double)PAGE / MIB, 8);
	}
}

/* writes pages at random among 24 MiB, 12 MiB a second */
static void scatter(void)
{
	size_t size = 24 * MIB;
	char *p = room(size);
	double begun = now();
	for (uint64_t n = 1;; n++) {
		*(uint64_t *)(p + any() % (size / PAGE) * PAGE) = n;
		if (n % 64 == 0)
			paced(begun, n * (double)PAGE / MIB, 12);
	}
}

/* 2 MiB as often as it can, and 3 MiB a second in 60 MiB */
static void kernelandtail(void)
{
	size_t size = 60 * MIB, hot = 256 << 10;
	char *p = room(size), *h = room(hot);
	double begun = now();
	for (uint64_t n = 1;; n++) {
		for (size_t i = 0; i < hot; i += PAGE)
			*(uint64_t *)(h + i) = n;
		*(uint64_t *)(p + n * PAGE % size) = n;
		if (n % 16 == 0)
			paced(begun, n * (double)PAGE / MIB, 3);
	}
}

/* --- for scoring --- */

/* products of dense matrices: much is read, a column at a time is written */
static void matmul(void)
{
	enum { N = 420 };
	double *a = room(N * N * 8), *b = room(N * N * 8), *c = room(N * N * 8);
	for (;;) {
		for (int i = 0; i < N; i++)
			for (int j = 0; j < N; j++) {
				double s = 0;
				for (int k = 0; k < N; k++)
					s += a[i * N + k] * b[k * N + j];
				c[i * N + j] = s + (double)(any() % 1000);
			}
	}
}

/* relaxation on a grid, two copies in turn */
static void jacobi(void)
{
	enum { N = 1100 };
	double *from = room(N * N * 8), *to = room(N * N * 8);
	for (int i = 0; i < N * N; i++)
		from[i] = any() % 1000;
	for (;;) {
		for (int i = 1; i < N - 1; i++) {
			for (int j = 1; j < N - 1; j++)
				to[i * N + j] = 0.25 * sqrt(fabs(from[i * N + j - 1] * from[i * N + j + 1] + 1)) +
						0.25 * sqrt(fabs(from[(i - 1) * N + j] * from[(i + 1) * N + j] + 1)) + any() % 3;
		}
		double *t = from;
		from = to;
		to = t;
	}
}

static int order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* sorts 12 MiB, again and again */
static void sorting(void)
{
	size_t n = 12 * MIB / 8;
	uint64_t *p = room(n * 8);
	for (;;) {
		qsort(p, n, 8, order);
		for (size_t i = 0; i < n; i++)
			p[i] = any();
	}
}

/* three seconds of reckoning, then 10 MiB anew at once */
static void burst(void)
{
	size_t size = 30 * MIB, at = 0;
	char *p = room(size);
	for (volatile double x = 1;;) {
		for (double end = now() + 3; now() < end;)
			for (int i = 0; i < 1000; i++)
				x = sqrt(x + i);
		for (int i = 0; i < 10 * MIB; i += PAGE, at = (at + PAGE) % size)
			*(uint64_t *)(p + at) = any();
	}
}

/* a table of counters that are met unevenly: some often, most seldom */
static void table(void)
{
	size_t size = 64 * MIB;
	char *p = room(size);
	double begun = now();
	for (uint64_t n = 1;; n++) {
		double u = (any() >> 11) * (1.0 / 9007199254740992.0);
		size_t page = (size_t)(u * u * u * u * (size / PAGE));
		++*(uint64_t *)(p + page * PAGE + any() % 500 * 8);
		if (n % 64 == 0)
			paced(begun, n * (double)PAGE / MIB, 10);
	}
}

/* a log that grows by 4 MiB a second up to 50 MiB, then begins anew */
static void journal(void)
{
	size_t size = 50 * MIB, at = 0;
	char *p = room(size);
	double begun = now(), done = 0;
	for (;;) {
		at += snprintf(p + at, 100, "%.9f %016llx event of some kind\n", now(), (unsigned long long)any());
		if (at + 200 > size)
			at = 0;
		done += 60.0 / MIB;
		paced(begun, done, 4);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = { { "idle", idle }, { "sweep", sweep }, { "scatter", scatter }, { "tail", kernelandtail }, { "matmul", matmul },
		    { "jacobi", jacobi }, { "sorting", sorting }, { "burst", burst }, { "table", table }, { "journal", journal } };
	printf("START\n");
	fflush(stdout);
	for (unsigned i = 0; argc > 1 && i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name))
			all[i].run();
	return 1;
}
