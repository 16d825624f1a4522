/* Makes every call once and prints what comes. */
#include <pagurus.h>
#include <stdio.h>

int main(void)
{
	struct pagurus_place p, others[4];
	struct pagurus_distance far[4];
	struct pagurus_price c;
	int n, i, code = pagurus_where(&p);
	printf("where %d '%s' '%s' '%s' %d %d\n", code, p.job, p.host, p.site, p.guests, p.here);
	code = pagurus_neighbours(others, 4, &n);
	printf("neighbours %d %d", code, n);
	for (i = 0; i < n && i < 4; i++)
		printf(" %s@%s@%s", others[i].guest, others[i].host, others[i].site);
	code = pagurus_distances(far, 4, &n);
	printf("\ndistances %d %d", code, n);
	for (i = 0; i < n && i < 4; i++)
		printf(" %s@%s %d %.4f %.0f", far[i].guest, far[i].host, far[i].place, far[i].latency, far[i].bandwidth);
	code = pagurus_cost(PAGURUS_ME, &c);
	printf("\ncost %d '%s' %.0f\n", code, c.to, c.seconds);
	code = pagurus_cost_at_mark(PAGURUS_ME, &c);
	printf("at a mark %d '%s' %.1f %lld\n", code, c.to, c.seconds, c.bytes);
	printf("move %d\n", pagurus_move(PAGURUS_JOB, PAGURUS_AWAY, 0));
	printf("move %d\n", pagurus_move(PAGURUS_ME, PAGURUS_WITH_RANK, 3));
	printf("checkpoint %d\n", pagurus_checkpoint());
	printf("cheap %d\n", pagurus_cheap_now());
	printf("not now %d\n", pagurus_not_now(1.5));
	printf("remark %d\n", pagurus_remark(PAGURUS_ILL, "a disk is slow"));
	printf("invalid %d %d %d\n", pagurus_move(7, 0, 0), pagurus_not_now(-1), pagurus_remark(9, "x"));
	return 0;
}
