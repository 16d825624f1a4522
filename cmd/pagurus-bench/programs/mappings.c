/* Fills a page in each of so many mappings, which no two the kernel can join, says so by
   "START" and the file "ready", and writes to some of them until there is a file "go". Then it tells
   whether each page holds what it should, and each mapping is what it was. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char line[4096];

/* mappings counts those within a range. */
static long mappings(char *from, char *to)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long start;
	long lines = 0;

	if (!f)
		return -1;
	while (fgets(line, sizeof line, f))
		lines += sscanf(line, "%lx", &start) == 1 && start >= (unsigned long)from && start < (unsigned long)to;
	fclose(f);
	return lines;
}

int main(int argc, char **argv)
{
	const char *kind = argc > 2 ? argv[2] : "rights";
	long count = atol(argv[1]), page = sysconf(_SC_PAGESIZE), before, after, wrong = 0;
	long step = strcmp(kind, "gaps") ? page : 2 * page; /* from one to the next */
	char *at = mmap(0, count * step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int fd = -1;

	if (at == MAP_FAILED)
		return 2;
	if (!strcmp(kind, "file")) {
		fd = open("mapped", O_CREAT | O_RDWR | O_TRUNC, 0644);
		if (fd < 0 || ftruncate(fd, 2 * count * page))
			return 4;
	}
	madvise(at, count * step, MADV_NOHUGEPAGE);
	for (long i = 0; i < count; i++) {
		char *here = at + i * step;
		if (!strcmp(kind, "shared") && mmap(here, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			return 5;
		if (fd >= 0 && mmap(here, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 2 * i * page) == MAP_FAILED)
			return 6;
		*(long *)here = i * 7919 + 1;
		if (!strcmp(kind, "rights") && i % 2 && mprotect(here, page, PROT_READ))
			return 3;
		if (step > page && munmap(here + page, page))
			return 7;
	}
	before = mappings(at, at + count * step);
	puts("START");
	fflush(stdout);
	close(open("ready", O_CREAT | O_WRONLY, 0644));
	while (access("go", F_OK)) {
		for (long i = 0; i < count; i += 100)
			*(volatile long *)(at + i * step + 8) += 1;
		usleep(10000);
	}
	after = mappings(at, at + count * step);
	for (long i = 0; i < count; i++) {
		wrong += *(long *)(at + i * step) != i * 7919 + 1;
		if (i % 100 == 0)
			wrong += *(long *)(at + i * step + 8) != *(long *)(at + 8);
	}
	printf("%s: %ld of %ld pages are wrong, %ld mappings were %ld\n", wrong || before != after || before < count ? "WRONG" : "right", wrong, count, after, before);
	return wrong || before != after || before < count;
}
