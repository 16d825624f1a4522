/* State that prevents a move, but is found only in the suspended guest. Each case measures its
   longest suspension itself. */
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

static const struct state all[] = {{"stopped_by_terminal", stopped_by_terminal}};
MAIN(all)
