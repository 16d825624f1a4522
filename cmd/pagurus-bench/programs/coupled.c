/* A coupled program of so many steps: each rank computes the same for each step,
   then all of them agree on a sum. A rank that is slow slows all. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank, steps = argc > 1 ? atoi(argv[1]) : 1;
	double sum = 0, all = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < steps; i++) {
		for (int k = 1; k <= 200000; k++)
			sum += 1.0 / ((double)k * (rank + 1));
		MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		if (!rank && i == 0) {
			puts("BEGUN");
			fflush(stdout);
		}
	}
	if (!rank)
		printf("DONE %d %.6f\n", steps, all);
	MPI_Finalize();
	return 0;
}
