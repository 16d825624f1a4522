#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/un.h>

/* State that a move waits for: each case has it during the move, and reads it when told to go
   on, while the move waits. */

static struct sockaddr_in local(int s)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	socklen_t l = sizeof a;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (s >= 0)
		MUST(getsockname(s, (void *)&a, &l));
	return a;
}

static int bound(int type)
{
	struct sockaddr_in a = local(-1);
	int s = MUST(socket(AF_INET, type, 0));

	MUST(bind(s, (void *)&a, sizeof a));
	return s;
}

static void pair(int p[2], int options)
{
	int l = bound(SOCK_STREAM);

	if (options)
		MUST(setsockopt(l, 6, TCP_SAVE_SYN, &(int){1}, 4));
	MUST(listen(l, 5));
	struct sockaddr_in a = local(l);
	p[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(p[0], (void *)&a, sizeof a));
	p[1] = MUST(accept(l, 0, 0));
	close(l);
}

static int gets_(int s, int flags, const char *text)
{
	char got[100];
	int n = recv(s, got, sizeof got, flags | MSG_DONTWAIT);

	return n == (int)strlen(text) && !memcmp(got, text, n);
}

static void urgent(void)
{
	int p[2], q[2];

	pair(p, 0);
	pair(q, 0);
	MUST(setsockopt(q[1], SOL_SOCKET, SO_OOBINLINE, &(int){1}, 4));
	MUST(setsockopt(q[1], 6, TCP_NODELAY, &(int){1}, 4));
	MUST(send(p[0], "abc", 3, 0));
	MUST(send(p[0], "!", 1, MSG_OOB));
	MUST(send(p[0], "def", 3, 0));
	usleep(100000);
	await_move();
	IS(gets_(p[1], MSG_OOB, "!"), "the urgent byte is lost");
	IS(gets_(p[1], 0, "abc"), "what was before it is lost");
	IS(gets_(p[1], 0, "def"), "what was behind it is lost");
}

static void inlined(void)
{
	int p[2];

	pair(p, 0);
	MUST(setsockopt(p[1], SOL_SOCKET, SO_OOBINLINE, &(int){1}, 4));
	MUST(send(p[0], "abc", 3, 0));
	MUST(send(p[0], "!", 1, MSG_OOB));
	MUST(send(p[0], "def", 3, 0));
	usleep(100000);
	await_move();
	IS(gets_(p[1], 0, "abc"), "what was before it is lost");
	IS(gets_(p[1], 0, "!def"), "what was behind it is lost");
}

static void savedsyn(void)
{
	char syn[200];
	socklen_t l = sizeof syn;
	int p[2];

	pair(p, 1);
	await_move();
	IS(!getsockopt(p[1], 6, TCP_SAVED_SYN, syn, &l) && l > 20, "the saved packet is lost");
}

/* A connection of IPv6 that is closed at one end, until the other is closed, too. */
static void half6(void)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int l = MUST(socket(AF_INET6, SOCK_STREAM, 0)), c = MUST(socket(AF_INET6, SOCK_STREAM, 0));
	socklen_t length = sizeof a;
	char got;

	MUST(bind(l, (void *)&a, sizeof a));
	MUST(listen(l, 1));
	MUST(getsockname(l, (void *)&a, &length));
	MUST(connect(c, (void *)&a, sizeof a));
	int s = MUST(accept(l, 0, 0));
	MUST(shutdown(c, SHUT_WR));
	await_move();
	IS(recv(s, &got, 1, MSG_DONTWAIT) == 0, "its end is not there");
	IS(send(s, "x", 1, 0) == 1 && recv(c, &got, 1, 0) == 1, "the other half does not work");
	close(s);
	close(c);
}

/* One that is closed at both ends, until the sockets are. */
static void over6(void)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int l = MUST(socket(AF_INET6, SOCK_STREAM, 0)), c = MUST(socket(AF_INET6, SOCK_STREAM, 0));
	socklen_t length = sizeof a;

	MUST(bind(l, (void *)&a, sizeof a));
	MUST(listen(l, 1));
	MUST(getsockname(l, (void *)&a, &length));
	MUST(connect(c, (void *)&a, sizeof a));
	int s = MUST(accept(l, 0, 0));
	MUST(shutdown(s, SHUT_RDWR));
	usleep(50000);
	MUST(shutdown(c, SHUT_RDWR));
	usleep(50000);
	await_move();
	close(s);
	close(c);
}

static void errors(void)
{
	int c = bound(SOCK_DGRAM), s = bound(SOCK_DGRAM), e = 0;
	struct sockaddr_in a = local(s);
	socklen_t l = sizeof e;

	MUST(connect(c, (void *)&a, sizeof a));
	close(s);
	MUST(send(c, "x", 1, 0));
	usleep(100000);
	await_move();
	IS(!getsockopt(c, SOL_SOCKET, SO_ERROR, &e, &l) && e == ECONNREFUSED, "the error is %d", e);
}

/* A time stamp in the error queue. */
static void stamps(void)
{
	char control[200], data[20];
	struct iovec v = {data, sizeof data};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int c = bound(SOCK_DGRAM), s = bound(SOCK_DGRAM);
	struct sockaddr_in a = local(s);

	MUST(setsockopt(c, SOL_SOCKET, SO_TIMESTAMPING, &(int){0x2 | 0x10}, 4));
	MUST(sendto(c, "x", 1, 0, (void *)&a, sizeof a));
	usleep(100000);
	await_move();
	IS(recvmsg(c, &h, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0, "the time stamp is lost");
}

static void corked(void)
{
	int c = bound(SOCK_DGRAM), s = bound(SOCK_DGRAM);
	struct sockaddr_in a = local(s);

	MUST(connect(c, (void *)&a, sizeof a));
	MUST(setsockopt(c, 17, UDP_CORK, &(int){1}, 4));
	MUST(send(c, "one", 3, 0));
	await_move();
	MUST(send(c, "two", 3, 0));
	MUST(setsockopt(c, 17, UDP_CORK, &(int){0}, 4));
	IS(gets_(s, 0, "onetwo"), "the message is lost");
}

/* Two sockets share a port, and one is connected to a peer other than its message's sender. */
static void ambiguous(void)
{
	int a = MUST(socket(AF_INET, SOCK_DGRAM, 0)), b = MUST(socket(AF_INET, SOCK_DGRAM, 0)), c = bound(SOCK_DGRAM), d = bound(SOCK_DGRAM), e = bound(SOCK_DGRAM);
	struct sockaddr_in to = local(-1), its = local(e), other = local(c);

	MUST(setsockopt(a, SOL_SOCKET, SO_REUSEPORT, &(int){1}, 4));
	MUST(setsockopt(b, SOL_SOCKET, SO_REUSEPORT, &(int){1}, 4));
	MUST(bind(a, (void *)&to, sizeof to));
	to = local(a);
	MUST(bind(b, (void *)&to, sizeof to));
	MUST(sendto(c, "x", 1, 0, (void *)&to, sizeof to));
	MUST(sendto(d, "y", 1, 0, (void *)&its, sizeof its));
	MUST(connect(e, (void *)&other, sizeof other));
	await_move();
	IS(gets_(a, 0, "x") || gets_(b, 0, "x"), "the message is lost");
	IS(gets_(e, 0, "y"), "the message from before the connection is lost");
}

/* sock is a Unix socket with a name of its own, derived from the case's. */
static int sock(int type, const char *which, struct sockaddr_un *a)
{
	int s = MUST(socket(AF_UNIX, type, 0));

	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	snprintf(a->sun_path, sizeof a->sun_path, "/tmp/%s.%s", name, which);
	MUST(bind(s, (void *)a, sizeof *a));
	return s;
}

static void named(void)
{
	struct sockaddr_un a, b, from = {0};
	socklen_t l = sizeof from;
	int s = sock(SOCK_DGRAM, "s", &a), c = sock(SOCK_DGRAM, "c", &b);
	char got[10];

	MUST(sendto(c, "hello", 5, 0, (void *)&a, sizeof a));
	close(c); /* so it could not be sent again */
	await_move();
	IS(recvfrom(s, got, sizeof got, MSG_DONTWAIT, (void *)&from, &l) == 5 && !strcmp(from.sun_path, b.sun_path), "the sender is %s", from.sun_path);
}

static void give(int s, int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec v = {"file", 4};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *m = CMSG_FIRSTHDR(&h);

	m->cmsg_level = SOL_SOCKET, m->cmsg_type = SCM_RIGHTS, m->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(m), &fd, sizeof fd);
	MUST(sendmsg(s, &h, 0));
}

/* takes reads a message that has a control message of a kind. */
static int takes(int s, int kind)
{
	char control[200] = {0}, data[20];
	struct iovec v = {data, sizeof data};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int n = recvmsg(s, &h, MSG_DONTWAIT);
	struct cmsghdr *m = CMSG_FIRSTHDR(&h);

	return n == 4 && m && m->cmsg_type == kind;
}

static void control(void)
{
	int p[2], q[2], f[2];

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, q));
	MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, f));
	give(p[0], f[0]);
	close(f[0]); /* only the message has it */
	MUST(setsockopt(q[1], SOL_SOCKET, SO_PASSCRED, &(int){1}, 4));
	MUST(send(q[0], "cred", 4, 0));
	await_move();
	IS(takes(p[1], SCM_RIGHTS), "the file is lost");
	IS(takes(q[1], SCM_CREDENTIALS), "the credentials are lost");
}

static void empty(void)
{
	int p[2];
	char c;

	MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, p));
	MUST(send(p[0], "a", 1, 0));
	MUST(send(p[0], "", 0, 0));
	MUST(send(p[0], "b", 1, 0));
	await_move();
	IS(gets_(p[1], 0, "a"), "the first message is lost");
	IS(recv(p[1], &c, 1, MSG_DONTWAIT) == 0, "the empty message is lost");
	IS(gets_(p[1], 0, "b"), "the last message is lost");
}

static void unaccepted(void)
{
	struct sockaddr_un a;
	int s = sock(SOCK_STREAM, "s", &a), c = MUST(socket(AF_UNIX, SOCK_STREAM, 0));

	MUST(listen(s, 5));
	MUST(connect(c, (void *)&a, sizeof a));
	MUST(send(c, "data", 4, 0));
	await_move();
	int d = accept(s, 0, 0);
	IS(d >= 0 && gets_(d, 0, "data"), "what was sent is lost");
}

static void pending(void)
{
	int s = bound(SOCK_STREAM), c = MUST(socket(AF_INET, SOCK_STREAM, 0));

	MUST(listen(s, 5));
	struct sockaddr_in a = local(s);
	MUST(connect(c, (void *)&a, sizeof a));
	MUST(send(c, "data", 4, 0));
	await_move();
	int d = accept(s, 0, 0);
	IS(d >= 0 && gets_(d, 0, "data"), "what was sent is lost");
}

static void netlink(void)
{
	struct { struct nlmsghdr h; struct rtgenmsg g; } q = {{.nlmsg_len = sizeof q, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP}, {AF_UNSPEC}};
	struct sockaddr_nl a = {.nl_family = AF_NETLINK};
	char got[8192];
	int s = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));

	MUST(bind(s, (void *)&a, sizeof a));
	MUST(send(s, &q, sizeof q, 0));
	await_move();
	IS(recv(s, got, sizeof got, MSG_DONTWAIT) > 0, "the answer is lost");
	while (recv(s, got, sizeof got, MSG_DONTWAIT) > 0)
		;
}

static const struct state all[] = {
	{"urgent", urgent}, {"inlined", inlined}, {"savedsyn", savedsyn}, {"half6", half6}, {"over6", over6}, {"errors", errors}, {"stamps", stamps}, {"corked", corked}, {"ambiguous", ambiguous}, {"named", named},
	{"control", control}, {"empty", empty}, {"unaccepted", unaccepted}, {"pending", pending}, {"netlink", netlink},
};
MAIN(all)
