/* A busy, tightly coupled job for the bench of moves: each rank changes one page after the
   other of as many MiB as the first argument says, to what cannot be compressed, as results
   of a computation cannot; and after each page all ranks add up. Four times a second rank 0
   says when it is and what the longest time between two sums was since it last did. It runs
   until it is ended. With a second argument it first reads as many MiB of the files in /usr,
   which stay in the page cache. */
#define _GNU_SOURCE
#include <ftw.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PAGE 512 /* words */

static uint64_t state = 88172645463325252u;

static void fill(uint64_t *page)
{
	for (int i = 0; i < PAGE; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		page[i] = state;
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static size_t unread; /* bytes that are yet to be read */

static int consume(const char *path, const struct stat *is, int kind, struct FTW *at)
{
	static char buffer[1 << 16];
	FILE *f = kind == FTW_F && S_ISREG(is->st_mode) ? fopen(path, "r") : 0;

	(void)at;
	for (size_t n; f && unread && (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
		unread -= n < unread ? n : unread;
	if (f)
		fclose(f);
	return unread == 0; /* which ends the walk */
}

int main(int argc, char **argv)
{
	size_t pages = (argc > 1 ? strtoul(argv[1], 0, 10) : 64) * 256, next = 0;
	double mine[16] = {0}, sum[16], longest = 0;
	uint64_t *memory = malloc(pages * PAGE * sizeof *memory);
	int rank;

	unread = (argc > 2 ? strtoul(argv[2], 0, 10) : 0) << 20;
	if (unread)
		nftw("/usr", consume, 16, FTW_PHYS);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!memory || unread)
		MPI_Abort(MPI_COMM_WORLD, 3);
	for (size_t i = 0; i < pages; i++)
		fill(memory + i * PAGE);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		puts("START");
		fflush(stdout);
	}
	for (double last = now(), said = last;;) {
		fill(memory + next * PAGE);
		next = (next + 1) % pages;
		MPI_Allreduce(mine, sum, 16, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		double t = now();
		longest = t - last > longest ? t - last : longest;
		last = t;
		if (rank == 0 && t - said > 0.25) {
			printf("GAP %.6f %.6f\n", t, longest);
			fflush(stdout);
			said = t;
			longest = 0;
		}
	}
}
