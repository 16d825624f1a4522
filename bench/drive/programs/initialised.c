/* Says when MPI_Init returned, in nanoseconds of the machine's clock. */
#include <mpi.h>
#include <stdio.h>
#include <time.h>

int main(int c, char **v)
{
	struct timespec t;
	MPI_Init(&c, &v);
	clock_gettime(CLOCK_REALTIME, &t);
	printf("initialised %ld%09ld\n", (long)t.tv_sec, t.tv_nsec);
	MPI_Finalize();
	return 0;
}
