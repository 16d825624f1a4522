/* A tightly coupled job for the bench of stalls: adds up over all ranks again
   and again, and says of every silence between two sums that was longer than the
   first argument (seconds) how long it was and when it ended. It runs until it
   is ended. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	double mine[16] = {0}, sum[16], least = argc > 1 ? atof(argv[1]) : 0.02;
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (rank == 0) {
		puts("START");
		fflush(stdout);
	}
	for (double last = now();;) {
		MPI_Allreduce(mine, sum, 16, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		double t = now();
		if (t - last > least) {
			printf("GAP %.6f %.6f\n", t, t - last);
			fflush(stdout);
		}
		last = t;
	}
}
