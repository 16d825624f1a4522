/* Has memory that it needs, and memory that it does not need at its cheap moments ("with": it says so). It marks cheap moments
 * until there is a file "go", and then prints whether what it needs is whole, and how many pages of the rest are not zeros. */
#include <pagurus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEPT = 24 << 20, SCRATCH = 100 << 20, PAGE = 4096 };

int main(int argc, char **argv)
{
	unsigned *kept = malloc(KEPT), *scratch = malloc(SCRATCH), i;
	int wrong = 0, full = 0, code = PAGURUS_OK;
	for (i = 0; i < KEPT / sizeof *kept; i++)
		kept[i] = i * 2654435761u + 1;
	for (i = 0; i < SCRATCH / sizeof *scratch; i++)
		scratch[i] = i * 2246822519u + 1;
	if (argc > 1 && !strcmp(argv[1], "with"))
		code = pagurus_scratch(scratch, SCRATCH);
	fclose(fopen("ready", "w"));
	while (access("go", F_OK) != 0) {
		pagurus_cheap_now();
		usleep(50000);
	}
	for (i = 0; i < KEPT / sizeof *kept; i++)
		wrong += kept[i] != i * 2654435761u + 1;
	for (i = 0; i < SCRATCH / sizeof *scratch; i += PAGE / sizeof *scratch)
		full += scratch[i + 1] != 0;
	if (code == PAGURUS_OK && argc > 1 && !strcmp(argv[1], "with"))
		code = pagurus_scratch_end(scratch);
	memset(scratch, 5, SCRATCH); /* it can be used again */
	printf("code %d, wrong %d, full %d\n", code, wrong, full);
	return 0;
}
