/* Files of the job that another guest changes while this one has them open. */
static char *map(const char *file, int flags)
{
	int fd = MUST(open(file, O_RDWR));
	char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, flags, fd, 0);

	MUST(m == MAP_FAILED ? -1 : 0);
	close(fd);
	return m;
}

/* The other guest appends to one file, truncates and rewrites another, and shortens a
   third below what is mapped of it. */
static void changing(void)
{
	int app = MUST(open("appended", O_RDWR | O_APPEND)), cut = MUST(open("rewritten", O_RDWR));
	char *shared = map("appended", MAP_SHARED), *own = map("appended", MAP_PRIVATE);
	char *shorter = map("shortened", MAP_SHARED), *shorterown = map("shortened", MAP_PRIVATE);
	char b[8] = "";

	own[1] = 'p';
	shorterown[1] = 'q';
	shorterown[4097] = 'r';
	MUST(lseek(cut, 3, SEEK_SET));
	await_move();
	IS(own[1] == 'p' && shorterown[1] == 'q', "private pages are lost");
	IS(shared[0] == 'a' && shorter[0] == 's', "shared pages are others");
	IS(lseek(cut, 0, SEEK_CUR) == 3, "the offset is lost");
	shared[2] = 'X';
	IS(pread(app, b, 1, 2) == 1 && b[0] == 'X', "the mapping is not the file's");
	IS(write(app, "end", 3) == 3, "write");
	IS(pread(app, b, 3, lseek(app, 0, SEEK_END) - 3) == 3, "read");
}

static const struct state all[] = {{"changing", changing}};
MAIN(all)
