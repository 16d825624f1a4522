/* Files of the job that another guest changes while this one has them open. */
static char *map(const char *file, int flags)
{
	int fd = MUST(open(file, O_RDWR));
	char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, flags, fd, 0);

	MUST(m == MAP_FAILED ? -1 : 0);
	close(fd);
	return m;
}

/* The other guest appends to one file, truncates and rewrites another, and truncates a third
   below its mapping. */
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

/* A name of the job's files is given to another file, or removed, while both guests have the
   file open. */
static void replaced(void)
{
	int fd = MUST(open("replaced", O_RDWR)), again = MUST(dup(fd)), other = MUST(open("replaced", O_RDWR | O_APPEND));
	int gone = MUST(open("removed", O_RDWR)), linked = MUST(open("linked", O_RDWR));
	int folder = MUST(open("folder", O_RDONLY | O_DIRECTORY)), unnamed = MUST(open(".", O_TMPFILE | O_RDWR, 0644));
	char *m = map("replaced", MAP_SHARED), *p = map("removed", MAP_PRIVATE), b[8] = "", path[40];
	struct stat before, after;

	MUST(write(unnamed, "unnamed", 7));
	p[1] = 'P';
	MUST(lseek(fd, 2, SEEK_SET));
	MUST(fstat(fd, &before));
	close(MUST(open("replaced.open", O_CREAT | O_WRONLY, 0644)));
	while (access("replaced.done", F_OK))
		usleep(10000);
	await_move();
	MUST(fstat(fd, &after));
	IS(before.st_ino == after.st_ino && before.st_dev == after.st_dev, "it is another file");
	IS(lseek(again, 0, SEEK_CUR) == 2 && lseek(fd, 5, SEEK_SET) == 5 && lseek(again, 0, SEEK_CUR) == 5, "the offset is not shared");
	IS((fcntl(other, F_GETFL) & (O_APPEND | O_ACCMODE)) == (O_APPEND | O_RDWR), "its flags are others");
	IS(pread(fd, b, 3, 0) == 3 && !memcmp(b, "one", 3), "it reads '%.3s'", b);
	m[0] = 'O';
	IS(pwrite(fd, "NE", 2, 1) == 2, "write");
	IS(write(other, "end", 3) == 3, "append");
	IS(pwrite(gone, "GONE", 4, 0) == 4, "write");
	IS(p[1] == 'P' && p[0] == 'g', "the private mapping is '%.2s'", p);
	IS(pwrite(linked, "LINKED", 6, 0) == 6, "write");
	snprintf(path, sizeof path, "/proc/self/fd/%d", unnamed);
	IS(pread(unnamed, b, 7, 0) == 7 && !memcmp(b, "unnamed", 7), "the file that never had a name reads '%.7s'", b);
	IS(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == -1 && errno == EXDEV, "it can be given a name, and is said not to be");
	MUST(fstat(folder, &after));
	IS(after.st_nlink == 0 && S_ISDIR(after.st_mode), "the removed folder is another");
}

static const struct state all[] = {{"changing", changing}, {"replaced", replaced}};
MAIN(all)
