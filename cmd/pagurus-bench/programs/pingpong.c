/* Two ranks that send each other messages: prints the time of a small one there, LATENCY, and of the
   bytes of many large ones, TRANSFER, in seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALL = 8, SMALLS = 2000, LARGE = 1 << 20, LARGES = 64, WARM = 100 };

static void pass(char *b, int bytes, int rank)
{
	if (rank == 0) {
		MPI_Send(b, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(b, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		MPI_Recv(b, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(b, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
	}
}

static double passes(char *b, int bytes, int times, int rank)
{
	MPI_Barrier(MPI_COMM_WORLD);
	double begun = MPI_Wtime();
	for (int i = 0; i < times; i++)
		pass(b, bytes, rank);
	return MPI_Wtime() - begun;
}

int main(int argc, char **argv)
{
	char *b = calloc(1, LARGE);
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	passes(b, SMALL, WARM, rank);
	double latency = passes(b, SMALL, SMALLS, rank) / SMALLS / 2;
	passes(b, LARGE, 4, rank);
	double transfer = passes(b, LARGE, LARGES / 2, rank);
	if (rank == 0)
		printf("LATENCY %.9f\nTRANSFER %.6f\n", latency, transfer);
	MPI_Finalize();
	return 0;
}
