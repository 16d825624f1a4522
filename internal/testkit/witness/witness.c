/*
 * witness: an MPI program that notices errors while it runs.
 *
 *   witness SECONDS [BALLAST_MIB [SLEEP_US [FILE]]]
 *
 * Every rank keeps numbered pages and changes one after the other. Ranks pass
 * checksummed messages round a ring and add up over all of them. A changed page, a
 * changed message and a clock that goes backwards are errors. Rank 0 prints a line
 * when it starts, each rank prints its counts, and rank 0 prints "OK" or "WRONG"
 * last. The exit code says the same. It ends after SECONDS, or soon after FILE
 * exists, because a test does not know how long it will take.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PAGE 512 /* words */
#define WORDS 1024

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 5;
	size_t pages = (argc > 2 ? strtoul(argv[2], 0, 10) : 8) * 256, p, k;
	int rest = argc > 3 ? atoi(argv[3]) : 1000;
	const char *file = argc > 4 ? argv[4] : NULL;
	int rank, size, stop = 0;
	char host[64] = "";
	uint64_t round = 0, wrong = 0, all = 0;
	static uint64_t out[WORDS], in[WORDS];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	gethostname(host, sizeof host - 1);
	uint64_t *mem = malloc((pages * PAGE + 1) * sizeof *mem);
	uint64_t *version = calloc(pages + 1, sizeof *version);
	if (!mem || !version) {
		fprintf(stderr, "witness: no memory\n");
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
	for (p = 0; p < pages; p++)
		for (k = 0; k < PAGE; k++)
			mem[p * PAGE + k] = mix(p * PAGE + k + rank);
	if (rank == 0) {
		printf("START ranks=%d\n", size);
		fflush(stdout);
	}
	double began = now(), before = began, looked = began, longest = 0;
	while (!stop) {
		int to = (rank + 1) % size, from = (rank + size - 1) % size;
		for (k = 0; k < WORDS; k++)
			out[k] = mix(round * WORDS + k + rank);
		MPI_Sendrecv(out, WORDS, MPI_UINT64_T, to, 1, in, WORDS, MPI_UINT64_T, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (k = 0; k < WORDS; k++)
			wrong += in[k] != mix(round * WORDS + k + from);
		uint64_t mine = round * (rank + 1), sum = 0;
		MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		wrong += sum != round * size * (size + 1) / 2;
		if (pages) {
			p = round % pages;
			for (k = 0; k < PAGE; k++) {
				uint64_t want = mix(p * PAGE + k + rank) + version[p];
				wrong += mem[p * PAGE + k] != want;
				mem[p * PAGE + k] = want + 1;
			}
			version[p]++;
		}
		double t = now();
		wrong += t < before;
		if (t - before > longest && round > 5)
			longest = t - before;
		before = t;
		round++;
		stop = t - began > seconds;
		if (file && rank == 0 && t - looked > 0.2) { /* not too often, since it asks the file server */
			looked = t;
			stop |= !access(file, F_OK);
		}
		MPI_Bcast(&stop, 1, MPI_INT, 0, MPI_COMM_WORLD);
		if (rest)
			usleep(rest);
	}
	for (p = 0; p < pages; p++)
		for (k = 0; k < PAGE; k++)
			wrong += mem[p * PAGE + k] != mix(p * PAGE + k + rank) + version[p];
	printf("rank=%d host=%s rounds=%llu wrong=%llu longest=%.4f\n", rank, host, (unsigned long long)round,
	       (unsigned long long)wrong, longest);
	fflush(stdout);
	MPI_Reduce(&wrong, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Bcast(&all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	usleep(100000); /* the others' lines come first */
	if (rank == 0)
		printf("%s\n", all ? "WRONG" : "OK");
	MPI_Finalize();
	return all ? 1 : 0;
}
