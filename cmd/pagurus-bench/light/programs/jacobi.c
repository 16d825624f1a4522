/* An MPI solver: Jacobi's method for Laplace's equation on a square of SIDE
   points, cut into strips of rows, one a rank; after every step neighbours swap
   rows, and all ranks add up how much has changed. Says how long STEPS took, TIMES
   times in all. Each time the strips lie elsewhere in memory: where they happen to
   lie makes a tenth of the time.

   jacobi SIDE STEPS TIMES */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int side, rows, up, down;

/* strip is memory that is there, also if nothing is in it yet. It is never freed, so
   that the next one is another. */
static double *strip(int rank)
{
	size_t n = (size_t)(rows + 2) * side;
	double *s = malloc(n * sizeof *s);

	if (!s)
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(s, 0, n * sizeof *s);
	for (int x = 0; !rank && x < side; x++)
		s[x] = 1;
	return s;
}

/* solve gives how much the last of all steps has changed. */
static double solve(double *old, double *new, int steps)
{
	double change, all = 0;

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
	return all;
}

int main(int argc, char **argv)
{
	int rank, ranks;
	double took = 0, change = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int steps = argc > 2 ? atoi(argv[2]) : 1000, times = argc > 3 ? atoi(argv[3]) : 1;
	side = argc > 1 ? atoi(argv[1]) : 2000;
	rows = side / ranks;
	up = rank ? rank - 1 : MPI_PROC_NULL;
	down = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
	for (int t = 0; t < times; t++) {
		double *old = strip(rank), *new = strip(rank);

		MPI_Barrier(MPI_COMM_WORLD);
		double begun = MPI_Wtime();
		change = solve(old, new, steps);
		took += MPI_Wtime() - begun;
	}
	if (!rank)
		printf("SECONDS %.6f change %.17g\n", took, change);
	MPI_Finalize();
	return 0;
}
