/* STREAM (McCalpin): the triad a = b + s*c over vectors larger than caches, on
   all ranks at once. Says how many bytes a second the slowest rank's best of
   TIMES moved.

   stream ELEMENTS TIMES */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank;
	size_t n = argc > 1 ? strtoull(argv[1], NULL, 0) : 4000000;
	int times = argc > 2 ? atoi(argv[2]) : 20;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *c = malloc(n * sizeof *c);
	double best = 0, slowest = 0, sum = 0;
	if (!a || !b || !c)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (size_t i = 0; i < n; i++) {
		a[i] = 0;
		b[i] = i;
		c[i] = 1;
	}
	for (int t = 0; t < times; t++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double begun = MPI_Wtime();
		for (size_t i = 0; i < n; i++)
			a[i] = b[i] + 3.0 * c[i];
		double rate = 3.0 * sizeof *a * n / (MPI_Wtime() - begun);
		if (rate > best)
			best = rate;
		sum += a[n / 2];
	}
	MPI_Allreduce(&best, &slowest, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
	if (!rank)
		printf("TRIAD %.6g sum %.17g\n", slowest, sum);
	MPI_Finalize();
	return 0;
}
