/*
 * A program that works in phases, and steers its own job: it marks the moments in which a move is cheap, has
 * moves wait while it fills its memory, names memory that need not be sent, and asks to be moved away from its host once. It ends after so many
 * phases, or when there is a file "stop". It runs without Pagurus, too, and then says so.
 *
 *   gcc -O2 -o phases phases.c -lpagurus        in `pagurus image shell openmpi`
 *   pagurus run -n 1 --kind container -- ./phases 30
 */
#include <pagurus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 16 << 20 };

int main(int argc, char **argv)
{
	int most = argc > 1 ? atoi(argv[1]) : 30, begun = 0, asked = 0, phase, code;
	char *memory = malloc(SIZE), *draft = malloc(SIZE), home[sizeof ((struct pagurus_place *)0)->host];
	struct pagurus_place place;
	struct pagurus_price price, cheap;

	setvbuf(stdout, 0, _IOLBF, 0);
	if (pagurus_remark(PAGURUS_NOTE, "the phases begin") == PAGURUS_NONE)
		printf("without Pagurus\n");
	pagurus_scratch(draft, SIZE); /* what is in it is not needed at the moments that are marked below */

	for (phase = 1; phase <= most && access("stop", F_OK) != 0; phase++) {
		pagurus_not_now(2); /* memory is filled: a copy made now would be made again */
		memset(draft, phase, SIZE);
		memcpy(memory, draft, SIZE);
		usleep(200000);
		pagurus_cheap_now(); /* from here on it is only read */
		usleep(800000);
		if (memory[SIZE / 2] != (char)phase)
			printf("memory is WRONG\n");

		/* On a busy machine an answer may be late: then again after the next phase. */
		if (pagurus_where(&place) != PAGURUS_OK)
			continue;
		if (!begun) {
			printf("begins on %s, guest %s of %d\n", place.host, place.guest, place.guests);
			strcpy(home, place.host);
			begun = 1;
		} else if (!asked && pagurus_cost(PAGURUS_ME, &price) == PAGURUS_OK && pagurus_cost_at_mark(PAGURUS_ME, &cheap) == PAGURUS_OK) {
			printf("a move to %s would take %.1f s and send %lld MiB, %lld of them at a cheap moment\n", price.to, price.seconds, price.bytes >> 20, cheap.bytes >> 20);
			code = pagurus_move(PAGURUS_ME, PAGURUS_AWAY, 0);
			printf("asked to be moved: code %d: %s\n", code, pagurus_text());
			asked = code == PAGURUS_OK;
		} else if (asked == 1 && strcmp(place.host, home) != 0) {
			printf("now on %s, in phase %d\n", place.host, phase);
			asked = 2;
		}
	}
	printf("done\n");
	return 0;
}
