#define _GNU_SOURCE
/* Puts a child into a group of its own only after the child has begun its program, as an mpirun that is slow does. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <fcntl.h>
#include <unistd.h>

int main(void)
{
	int stay[2];
	if (pipe2(stay, O_CLOEXEC))
		return 1;
	for (int own = 1; own >= 0; own--) {
		pid_t child = fork();
		if (child == 0) {
			if (own && setpgid(0, 0))
				_exit(1);
			dup2(stay[0], 0);
			execl("/bin/cat", "cat", NULL);
			_exit(1);
		}
		for (char path[64], name[8] = ""; name[0] != 'c' || name[1] != 'a';) {
			snprintf(path, sizeof path, "/proc/%d/comm", child);
			FILE *f = fopen(path, "r");
			if (!f || !fgets(name, sizeof name, f))
				return 1;
			fclose(f);
		}
		errno = 0;
		int done = setpgid(child, child);
		printf("%s group: %d %d\n", own ? "own" : "other", done, errno);
	}
	errno = 0;
	int none = setpgid(1, 1);
	printf("stranger: %d %d\n", none, errno);
	printf("preloaded: %s\n", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "nothing");
	printf("kept: %s\n", getenv("KEPT") ? getenv("KEPT") : "nothing");
	return 0;
}
