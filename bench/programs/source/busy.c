/* A busy, tightly coupled job for the bench of moves: each rank changes one page after the
   other of as many MiB as the first argument says, to what cannot be compressed, as results
   of a computation cannot; and after each page all ranks add up. Four times a second rank 0
   says when it is and what the longest time between two sums was since it last did. It runs
   until it is ended. */
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

int main(int argc, char **argv)
{
	size_t pages = (argc > 1 ? strtoul(argv[1], 0, 10) : 64) * 256, next = 0;
	double mine[16] = {0}, sum[16], longest = 0;
	uint64_t *memory = malloc(pages * PAGE * sizeof *memory);
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!memory)
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
