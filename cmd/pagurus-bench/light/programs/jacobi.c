/* An MPI solver: Jacobi's method for Laplace's equation on a square of SIDE
   points, cut into strips of rows, one a rank; after every step neighbours swap
   rows, and all ranks add up how much has changed. Says how long STEPS took.

   jacobi SIDE STEPS */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int side = argc > 1 ? atoi(argv[1]) : 2000, steps = argc > 2 ? atoi(argv[2]) : 1000;
	int rows = side / ranks, up = rank ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
	double *old = calloc((size_t)(rows + 2) * side, sizeof *old), *new = calloc((size_t)(rows + 2) * side, sizeof *new);
	double change = 0, all = 0;
	if (!old || !new)
		MPI_Abort(MPI_COMM_WORLD, 1);
	if (!rank)
		for (int x = 0; x < side; x++)
			old[x] = new[x] = 1;
	MPI_Barrier(MPI_COMM_WORLD);
	double begun = MPI_Wtime();
	for (int s = 0; s < steps; s++) {
		MPI_Sendrecv(old + side, side, MPI_DOUBLE, up, 0, old + (size_t)(rows + 1) * side, side, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Sendrecv(old + (size_t)rows * side, side, MPI_DOUBLE, down, 1, old, side, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		change = 0;
		for (int y = 1; y <= rows; y++)
			for (int x = 1; x < side - 1; x++) {
				size_t i = (size_t)y * side + x;
				new[i] = (old[i - 1] + old[i + 1] + old[i - side] + old[i + side]) / 4;
				change += fabs(new[i] - old[i]);
			}
		MPI_Allreduce(&change, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		double *other = old;
		old = new;
		new = other;
	}
	if (!rank)
		printf("SECONDS %.6f change %.17g\n", MPI_Wtime() - begun, all);
	MPI_Finalize();
	return 0;
}
