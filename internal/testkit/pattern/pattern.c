/*
 * pattern: sends a known pattern. Each of N ranks sends
 *
 *   to the next one      10 messages of 8000 bytes with MPI_Sendrecv,
 *                         7 messages of 100 bytes by a persistent send;
 *   to the last one       1 message of 40 bytes of a type with holes, in a
 *                         communicator with reversed ranks;
 *   to all                8 bytes, by one MPI_Allreduce.
 *
 * With SECONDS it then repeats MPI_Allreduce for so long, or until soon after
 * FILE exists, and prints how often. It sleeps REST_US after each.
 *
 *   pattern [SECONDS [FILE [REST_US]]]
 *
 * Its Fortran part (fortran.f) sends 3 messages of 10 reals from each rank to the
 * next.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static double out[1000], in[1000];
	char text[200] = "";
	int rank, ranks, i;
	long rounds = 0;
	double mine = 1, all = 1, until = argc > 1 ? atof(argv[1]) : 0, looked = 0;
	MPI_Comm turned;
	MPI_Datatype holes;
	MPI_Request q;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	for (i = 0; i < 10; i++)
		MPI_Sendrecv(out, 1000, MPI_DOUBLE, next, 1, in, 1000, MPI_DOUBLE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Send(out, 1, MPI_DOUBLE, MPI_PROC_NULL, 1, MPI_COMM_WORLD); /* MPI_PROC_NULL: no message */

	MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &turned);
	MPI_Type_vector(2, 1, 3, MPI_INT, &holes);
	MPI_Type_commit(&holes);
	MPI_Isend(out, 5, holes, 0, 2, turned, &q);
	for (i = 0; rank == ranks - 1 && i < ranks; i++)
		MPI_Recv(in, 5, holes, MPI_ANY_SOURCE, 2, turned, MPI_STATUS_IGNORE);
	MPI_Wait(&q, MPI_STATUS_IGNORE);
	MPI_Type_free(&holes);
	MPI_Comm_free(&turned);

	MPI_Send_init(text, 100, MPI_CHAR, next, 3, MPI_COMM_WORLD, &q);
	for (i = 0; i < 7; i++) {
		MPI_Start(&q);
		MPI_Recv(text + 100, 100, MPI_CHAR, before, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Wait(&q, MPI_STATUS_IGNORE);
	}
	MPI_Request_free(&q);

	MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("BEGUN\n");
		fflush(stdout);
	}
	for (until += MPI_Wtime(); all > 0 && argc > 1; rounds++) {
		double now = MPI_Wtime();
		if (argc > 2 && now - looked > 0.2) {
			looked = now;
			if (!access(argv[2], F_OK))
				until = 0;
		}
		mine = now < until; /* all go on as long as one does */
		MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		if (argc > 3)
			usleep(atoi(argv[3]));
	}
	if (rank == 0)
		printf("DONE %ld\n", rounds);
	MPI_Finalize();
	return 0;
}
