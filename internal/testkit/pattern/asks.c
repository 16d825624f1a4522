/*
 * asks: the cost of polling for a message.
 *
 * Rank 0 polls a thousand times with work between the polls, then for three seconds
 * without. It prints how often it slept in the first part, and the second part's share of
 * CPU time and number of polls. Rank 1 sends when both are over.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define TIMES 1000
#define WORK 100e-6
#define ASKING 3.0

static long slept(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_nvcsw; /* a yield is not among them */
}

static double processor(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

int main(int argc, char **argv)
{
	int rank, flag, i;
	long asked = 0, sleeps;
	char b = 0, go = 1;
	double begun, used;
	MPI_Request q;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (rank != 0) {
		MPI_Recv(&b, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(&b, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
		MPI_Finalize();
		return 0;
	}
	MPI_Irecv(&b, 1, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &q);
	sleeps = slept();
	for (i = 0; i < TIMES; i++) {
		double from = MPI_Wtime();
		MPI_Test(&q, &flag, MPI_STATUS_IGNORE);
		while (MPI_Wtime() - from < WORK)
			;
	}
	sleeps = slept() - sleeps;
	begun = MPI_Wtime();
	used = processor();
	for (; MPI_Wtime() - begun < ASKING; asked++)
		MPI_Test(&q, &flag, MPI_STATUS_IGNORE);
	printf("SLEPT %ld USED %.3f ASKED %ld WAITS %s\n", sleeps, (processor() - used) / (MPI_Wtime() - begun), asked,
	       getenv("PAGURUS_WAIT") ? "yes" : "no");
	MPI_Send(&go, 1, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
	MPI_Wait(&q, MPI_STATUS_IGNORE);
	MPI_Finalize();
	return 0;
}
