/* What keeps a guest from moving, and is found only when it is suspended. Each looks for how
   long it was suspended itself. */
static double longest;

static void watch_for_move(void)
{
	double last = now(CLOCK_REALTIME);

	ready();
	while (!moved()) {
		double at;

		usleep(10000);
		at = now(CLOCK_REALTIME);
		if (at - last > longest)
			longest = at - last;
		last = at;
	}
	IS(longest < 6, "it was suspended for %.1f s", longest);
}

static void stopped_by_terminal(void)
{
	pid_t p = MUST(fork());
	int status;

	if (!p)
		for (;;)
			pause();
	setpgid(p, p);
	kill(p, SIGTTIN);
	MUST(waitpid(p, &status, WUNTRACED));
	watch_for_move();
	kill(p, SIGCONT);
	IS(waitpid(p, &status, WCONTINUED) == p && WIFCONTINUED(status), "it is not continued: status %x", status);
	kill(p, SIGKILL);
	waitpid(p, &status, 0);
}

static void waiting_parent(void)
{
	int end[2];
	char byte;
	pid_t p;

	MUST(pipe(end));
	p = MUST(fork());
	if (!p) {
		close(end[1]);
		if (!vfork()) {
			(void)!read(end[0], &byte, 1);
			_exit(0);
		}
		_exit(0);
	}
	close(end[0]);
	usleep(100000);
	watch_for_move();
	close(end[1]);
	IS(waitpid(p, 0, 0) == p, "the parent does not end");
}

static const struct state all[] = {{"stopped_by_terminal", stopped_by_terminal}, {"waiting_parent", waiting_parent}};
MAIN(all)
