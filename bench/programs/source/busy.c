/* A busy, tightly coupled job for the bench of moves: each rank changes one page after the
   other of as many MiB as the first argument says, and after each page all ranks add up. Four
   times a second rank 0 says when it is and what the longest time between two sums was since
   it last did. It runs until it is ended. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE 4096

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
	char *memory = malloc(pages * PAGE);
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!memory)
		MPI_Abort(MPI_COMM_WORLD, 3);
	for (size_t i = 0; i < pages * PAGE; i += 64)
		memory[i] = (char)(i * 2654435761u >> 16); /* nothing that QEMU takes for zeros */
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		puts("START");
		fflush(stdout);
	}
	for (double last = now(), said = last;;) {
		memset(memory + next * PAGE, (int)mine[0] + 1, PAGE);
		next = (next + 1) % pages;
		mine[0] = mine[0] < 100 ? mine[0] + 1 : 0;
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
