/*
 * polls: polls for messages when there is none. First POLLS times in a row, then 20
 * times with 20 ms of computing before each. It prints the milliseconds of both:
 * "POLLED 512 COMPUTED 400". At last it receives a message from itself, which the
 * polls did not disturb.
 *
 *   polls POLLS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int came = 0, sent = 1, got = 0;
	long polls = argc > 1 ? atol(argv[1]) : 0;
	double begun, polled, computed;
	MPI_Request q;

	MPI_Init(&argc, &argv);
	begun = MPI_Wtime();
	for (long i = 0; i < polls && !came; i++)
		MPI_Iprobe(MPI_ANY_SOURCE, 1, MPI_COMM_SELF, &came, MPI_STATUS_IGNORE);
	polled = MPI_Wtime() - begun;

	begun = MPI_Wtime();
	for (int i = 0; i < 20; i++) {
		for (double until = MPI_Wtime() + 0.02; MPI_Wtime() < until;)
			;
		MPI_Iprobe(MPI_ANY_SOURCE, 1, MPI_COMM_SELF, &came, MPI_STATUS_IGNORE);
	}
	computed = MPI_Wtime() - begun;

	MPI_Irecv(&got, 1, MPI_INT, 0, 1, MPI_COMM_SELF, &q);
	for (int i = 0; i < 1000; i++)
		MPI_Test(&q, &came, MPI_STATUS_IGNORE);
	if (came)
		return 1;
	MPI_Send(&sent, 1, MPI_INT, 0, 1, MPI_COMM_SELF);
	while (!came)
		MPI_Test(&q, &came, MPI_STATUS_IGNORE);
	printf("POLLED %.0f COMPUTED %.0f GOT %d\n", 1e3 * polled, 1e3 * computed, got);
	MPI_Finalize();
	return 0;
}
