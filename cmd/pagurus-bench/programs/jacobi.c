/* An MPI solver: Jacobi's method for Laplace's equation on a square of SIDE
   points, cut into strips of rows, one a rank; after every step neighbours swap
   rows, and all ranks add up how much has changed. Says how long STEPS took, TIMES
   times in all, each time in other memory: where it happens to lie makes a tenth of
   the time.

   jacobi SIDE STEPS TIMES */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define APART 40 /* numbers between the strips, or their rows lie in the same sets of caches */

static int side, rows, up, down;

/* strips makes both in one piece of memory that begins where a huge page does, so that it
   can be made of some, and is there. It is never freed, so that the next one is another. */
static void strips(double **old, double **new, int rank)
{
	size_t n = (size_t)(rows + 2) * side + APART, bytes = (2 * n * sizeof **old + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	double *all = aligned_alloc(HUGE_PAGE, bytes);

	if (!all)
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(all, 0, bytes);
	*old = all, *new = all + n;
	for (int x = 0; !rank && x < side; x++)
		(*old)[x] = (*new)[x] = 1;
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
		double *old, *new;

		strips(&old, &new, rank);
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
