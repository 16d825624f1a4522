/*
 * chain: an MPI program whose whole output follows from its arguments.
 *
 *   chain ROUNDS SLEEP_US
 *
 * Each round every rank mixes what its left neighbour has into what it has itself, and
 * into one of its pages. Rank 0 prints a sum over all ranks every EVERY rounds, and one
 * over all their pages at the end. pagurus-chaos computes the same.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGES 512
#define WORDS 512 /* of a page */
#define EVERY 100

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

static void say(uint64_t round, uint64_t mine, int rank)
{
	uint64_t sum = 0;
	MPI_Reduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%llu %016llx\n", (unsigned long long)round, (unsigned long long)sum);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[1], 0, 10) : 1000, round, left, k;
	int rest = argc > 2 ? atoi(argv[2]) : 1000, rank, size;
	static uint64_t mem[PAGES][WORDS];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	uint64_t mine = mix(rank + 1), all = 0;
	for (round = 1; round <= rounds; round++) {
		MPI_Sendrecv(&mine, 1, MPI_UINT64_T, (rank + 1) % size, 1, &left, 1, MPI_UINT64_T, (rank + size - 1) % size, 1, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		mine = mix(mine + 3 * left + round);
		for (k = 0; k < WORDS; k++)
			mem[round % PAGES][k] = 5 * mem[round % PAGES][k] + mine + k;
		if (round % EVERY == 0)
			say(round, mine, rank);
		if (rest)
			usleep(rest);
	}
	for (round = 0; round < PAGES; round++)
		for (k = 0; k < WORDS; k++)
			all = mix(all + mem[round][k]);
	say(0, all, rank);
	MPI_Finalize();
	return 0;
}
