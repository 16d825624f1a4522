/* A coupled program of so many steps: each rank computes the same for each step,
   then all of them agree on a sum. A rank that is slow slows all. Each has so many
   MiB of memory, of which it writes a page a step. It says how long the steps took.

   coupled STEPS MIB */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank, steps = argc > 1 ? atoi(argv[1]) : 1;
	size_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 0) : 1) << 20;
	double sum = 0, all = 0, begun;
	unsigned seed = 1;
	char *memory = malloc(bytes);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!memory)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (size_t i = 0; i < bytes; i++)
		memory[i] = (seed = seed * 1103515245 + 12345) >> 16;
	MPI_Barrier(MPI_COMM_WORLD);
	begun = MPI_Wtime();
	for (int i = 0; i < steps; i++) {
		memory[(size_t)i * 4096 % bytes]++;
		for (int k = 1; k <= 200000; k++)
			sum += 1.0 / ((double)k * (rank + 1));
		MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		if (!rank && i == 0) {
			puts("BEGUN");
			fflush(stdout);
		}
	}
	if (!rank)
		printf("DONE %d %.6f %.3f\n", steps, all, MPI_Wtime() - begun);
	MPI_Finalize();
	return 0;
}
