/* Uses scratch memory well and badly, and prints what comes. A program that runs this is told at each mark that a move waits. */
#include <fcntl.h>
#include <pagurus.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MANY = 64 };
#define SAY(call) printf(" %d", call)

static char *map(long pages, int rights, int how, int fd)
{
	char *m = mmap(0, pages * PAGE, rights, how, fd, 0);
	if (m == MAP_FAILED)
		exit(9);
	return m;
}

static void *works(void *argument)
{
	int i;
	for (i = 0; i < 300; i++) {
		char *m = malloc(5 * PAGE);
		memset(m, 1, 5 * PAGE);
		if (pagurus_scratch(m, 5 * PAGE) > PAGURUS_NONE || pagurus_scratch_end(m) > PAGURUS_NONE)
			return argument;
		memset(m, 2, 5 * PAGE); /* nobody may give it back any more */
		if (i % 16 == 0)
			pagurus_cheap_now();
		if (m[PAGE] != 2 || m[3 * PAGE] != 2)
			printf("memory that has ended is given back\n");
		free(m);
	}
	return 0;
}

int main(int argc, char **argv)
{
	char stack[3 * PAGE], *whole = aligned_alloc(PAGE, 9 * PAGE), *many[MANY], *gap, *some, *both;
	int i, n, file = open(argv[0], O_RDONLY);
	pthread_t threads[4];
	(void)argc;
	memset(whole, 7, 9 * PAGE);
	memset(stack, 7, sizeof stack);
	gap = map(3, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	munmap(gap + PAGE, PAGE);
	both = map(4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	mprotect(both + PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC); /* two mappings, all of them right */
	printf("bad:");
	SAY(pagurus_scratch(0, 9 * PAGE));
	SAY(pagurus_scratch(whole, 0));
	SAY(pagurus_scratch(whole, PAGE - 1));
	SAY(pagurus_scratch(whole, (unsigned long)-1));
	SAY(pagurus_scratch((char *)~0UL, 1));
	SAY(pagurus_scratch((char *)(~0UL - PAGE), PAGE));
	SAY(pagurus_scratch(gap, 3 * PAGE));
	SAY(pagurus_scratch(stack, sizeof stack));
	SAY(pagurus_scratch(map(2, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1), 2 * PAGE));
	SAY(pagurus_scratch(map(2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1), 2 * PAGE));
	SAY(pagurus_scratch(map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE, file), 2 * PAGE));
	SAY(pagurus_scratch_end(whole));
	printf("\n");

	some = whole + 100; /* of 9 pages, so that 7 are whole */
	printf("good:");
	SAY(pagurus_scratch(some, 9 * PAGE - 200));
	SAY(pagurus_scratch(both, 4 * PAGE));
	SAY(pagurus_scratch(some, 9 * PAGE - 200)); /* again */
	SAY(pagurus_scratch(whole + 4 * PAGE, PAGE)); /* within */
	printf("\n");
	memset(both, 7, 4 * PAGE);
	printf("cheap: %d", pagurus_cheap_now());
	for (n = i = 0; i < 9 * PAGE; i++)
		n += whole[i] == 7;
	printf(" left: %d of which %s, and %d\n", n / PAGE, whole[0] == 7 && whole[9 * PAGE - 1] == 7 ? "the ends" : "NOT THE ENDS", both[0] + both[4 * PAGE - 1]);
	fflush(stdout);
	memset(whole, 7, 9 * PAGE);
	usleep(30000);
	if (fork() == 0) {
		pagurus_cheap_now();
		_exit(whole[4 * PAGE]); /* its own */
	}
	wait(&n);
	printf("a child's: %d, here: %d\n", WEXITSTATUS(n), whole[4 * PAGE]);
	printf("end:");
	SAY(pagurus_scratch_end(some));
	SAY(pagurus_scratch_end(some));
	SAY(pagurus_scratch_end(both));
	printf("\n");
	usleep(30000);
	pagurus_cheap_now();
	printf("ended: %d\n", whole[4 * PAGE]);

	for (i = 0; i < MANY; i++)
		if (pagurus_scratch(many[i] = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1), PAGE) != PAGURUS_OK)
			printf("%d: %s\n", i, pagurus_text());
	printf("one too many:");
	SAY(pagurus_scratch(whole, 9 * PAGE));
	printf(" %s\n", pagurus_text());
	for (i = 0; i < MANY; i++)
		pagurus_scratch_end(many[i]);

	for (i = 0; i < 4; i++)
		pthread_create(&threads[i], 0, works, argv);
	for (i = 0; i < 4; i++) {
		void *failed = 0;
		pthread_join(threads[i], &failed);
		if (failed)
			printf("a thread's call fails\n");
	}
	printf("done\n");
	return 0;
}
