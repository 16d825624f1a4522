/* Has so many processes, children of the first ("flat") or each the child of the one before
   ("chain"), says so by "START" and the file "ready", and has each write to its memory until
   there is a file "go". Then it tells whether each is what it was, with its own parent. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100000 };
static unsigned char memory[BYTES];

/* ended waits for all children and reports whether one was wrong. */
static int ended(void)
{
	int status, wrong = 0;

	while (wait(&status) > 0)
		wrong |= status != 0;
	return wrong;
}

/* live is what each process does. */
static int live(int number, pid_t self, pid_t parent, int told)
{
	unsigned char beat = 0;
	int wrong = 0;

	memset(memory, number, BYTES / 2);
	if (write(told, "", 1) != 1)
		return 1;
	close(told);
	while (access("go", F_OK)) {
		beat++;
		memset(memory + BYTES / 2, beat, 4096);
		usleep(50000);
	}
	for (int i = 0; i < BYTES / 2; i++)
		wrong |= memory[i] != (unsigned char)number;
	for (int i = 0; i < 4096; i++)
		wrong |= memory[BYTES / 2 + i] != beat;
	return wrong | (getpid() != self) | (getppid() != parent);
}

int main(int argc, char **argv)
{
	int count = atoi(argv[1]), chain = argc > 2 && !strcmp(argv[2], "chain"), pipes[2], wrong;
	char all[1];

	if (pipe(pipes))
		return 2;
	for (int i = 1; i <= count; i++) {
		pid_t parent = getpid(), child = fork();
		if (child < 0)
			return 3;
		if (child == 0 && !chain)
			return live(i, getpid(), parent, pipes[1]);
		if (child > 0 && chain && i > 1) { /* one in the middle of the chain */
			wrong = live(i - 1, getpid(), getppid(), pipes[1]);
			return wrong | ended();
		}
		if (child > 0 && chain)
			break;
		if (chain && i == count)
			return live(i, getpid(), parent, pipes[1]);
	}
	close(pipes[1]);
	for (int i = 0; i < count; i++)
		if (read(pipes[0], all, 1) != 1)
			return 4;
	puts("START");
	fflush(stdout);
	close(open("ready", O_CREAT | O_WRONLY, 0644));
	wrong = ended();
	puts(wrong ? "WRONG" : "right");
	return wrong;
}
