/*
 * hello: the shortest MPI program. A guest that is going to be a snapshot runs
 * it once, so that what every MPI program loads is in its memory.
 *
 * Built inside the image, with the image's MPI:
 *   mpicc -O2 -o /usr/lib/pagurus/hello hello.c
 */
#include <mpi.h>

int main(int argc, char **argv)
{
	int r = MPI_Init(&argc, &argv);
	return r == MPI_SUCCESS ? MPI_Finalize() : r;
}
