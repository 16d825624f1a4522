/* Clocks of a process that only waits. */
static void clocks(void)
{
	double before = now(CLOCK_MONOTONIC);

	await_move();
	IS(now(CLOCK_MONOTONIC) > before, "CLOCK_MONOTONIC went back");
}

static const struct state all[] = {{"clocks", clocks}};
MAIN(all)
