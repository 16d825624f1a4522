#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/un.h>

static struct sockaddr_in local(int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

static int port_of(int s)
{
	struct sockaddr_in6 a;
	socklen_t l = sizeof a;

	MUST(getsockname(s, (void *)&a, &l));
	return ntohs(a.sin6_port);
}

static int udp(void)
{
	struct sockaddr_in a = local(0);
	int s = MUST(socket(AF_INET, SOCK_DGRAM, 0));

	MUST(bind(s, (void *)&a, sizeof a));
	return s;
}

static int listener(void)
{
	struct sockaddr_in a = local(0);
	int s = MUST(socket(AF_INET, SOCK_STREAM, 0));

	MUST(bind(s, (void *)&a, sizeof a));
	MUST(listen(s, 5));
	return s;
}

static void pair(int p[2])
{
	int l = listener();
	struct sockaddr_in a = local(port_of(l));

	p[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(p[0], (void *)&a, sizeof a));
	p[1] = MUST(accept(l, 0, 0));
	close(l);
}

static struct sockaddr_in6 local6(int port)
{
	return (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
}

/* listener6 listens for IPv6, and for IPv4 unless only is set. */
static int listener6(int only)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6};
	int s = MUST(socket(AF_INET6, SOCK_STREAM, 0));

	MUST(setsockopt(s, 41, IPV6_V6ONLY, &only, sizeof only));
	MUST(bind(s, (void *)&a, sizeof a));
	MUST(listen(s, 5));
	return s;
}

/* pair6 makes a connection to a listener for IPv6. */
static void pair6(int p[2], int l)
{
	struct sockaddr_in6 a = local6(port_of(l));

	p[0] = MUST(socket(AF_INET6, SOCK_STREAM, 0));
	MUST(connect(p[0], (void *)&a, sizeof a));
	p[1] = MUST(accept(l, 0, 0));
}

/* pair4to6 makes one of IPv4 to it. */
static void pair4to6(int p[2], int l)
{
	struct sockaddr_in a = local(port_of(l));

	p[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(p[0], (void *)&a, sizeof a));
	p[1] = MUST(accept(l, 0, 0));
}

/* udp6 makes a connected UDP socket, which gets its address so. */
static int udp6(void)
{
	struct sockaddr_in6 a = local6(0);
	int s = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), c = MUST(socket(AF_INET6, SOCK_DGRAM, 0));

	MUST(bind(s, (void *)&a, sizeof a));
	a = local6(port_of(s));
	MUST(connect(c, (void *)&a, sizeof a));
	return c;
}

/* An option that is set on sockets of the kinds given by letters. */
static const struct option {
	const char *kinds;
	int level, number, value, second, bytes;
} settings[] = {
	{"cdlfu6S", 1, SO_KEEPALIVE, 1}, {"cu6", 1, SO_BROADCAST, 1}, {"cu", 1, SO_DONTROUTE, 1}, {"c", 1, SO_OOBINLINE, 1},
	{"u", 1, SO_NO_CHECK, 1}, {"cfu6", 1, SO_PRIORITY, 5}, {"cf", 1, SO_LINGER, 1, 5, 8}, {"lf", 1, SO_REUSEPORT, 1},
	{"l", 1, SO_REUSEADDR, 1}, {"SDQn", 1, SO_PASSCRED, 1}, {"D", 1, 76, 1}, {"S", 1, 83, 0}, {"S", 1, 84, 1},
	{"cd", 1, SO_RCVLOWAT, 4}, {"cu6S", 1, SO_RCVBUF, 100000}, {"cuS", 1, SO_SNDBUF, 90000}, {"d", 1, SO_RCVTIMEO, 3, 0, 16},
	{"cu", 1, SO_SNDTIMEO, 4, 0, 16}, {"u", 1, SO_TIMESTAMP, 1}, {"6", 1, SO_TIMESTAMPNS, 1}, {"v", 1, 63, 1}, {"w", 1, 64, 1},
	{"u", 1, SO_TIMESTAMPING, 0x18}, {"v", 1, 65, 0x18}, {"u6", 1, SO_RXQ_OVFL, 1}, {"c", 1, SO_WIFI_STATUS, 1}, {"u", 1, SO_NOFCS, 1},
	{"u", 1, SO_SELECT_ERR_QUEUE, 1}, {"cu", 1, SO_BUSY_POLL, 0}, {"cu6", 1, 47, 1000000, 0, 8}, {"cu", 1, SO_ZEROCOPY, 1},
	{"u", 1, 61, CLOCK_MONOTONIC, 2, 8}, {"cf", 1, 74, 0}, {"u", 1, 75, 1}, {"u6", 1, 82, 1}, {"uD", 1, SO_PEEK_OFF, 3},
	{"v", 1, SO_BINDTOIFINDEX, 1}, {"c", 1, 70, 16},
	{"cu6", 0, IP_TTL, 33}, {"cu6f", 0, IP_TOS, 0x10}, {"u6", 0, IP_PKTINFO, 1}, {"u6", 0, IP_RECVERR, 1}, {"cu6", 0, IP_MTU_DISCOVER, IP_PMTUDISC_DO},
	{"u", 0, IP_RECVOPTS, 1}, {"u", 0, IP_RETOPTS, 1}, {"u6", 0, IP_RECVTTL, 1}, {"u6", 0, IP_RECVTOS, 1}, {"cu6", 0, IP_FREEBIND, 1},
	{"u", 0, IP_RECVORIGDSTADDR, 1}, {"cu", 0, IP_MINTTL, 2}, {"u", 0, IP_CHECKSUM, 1}, {"f", 0, IP_BIND_ADDRESS_NO_PORT, 1},
	{"u", 0, IP_RECVFRAGSIZE, 1}, {"u", 0, 26, 1}, {"u6", 0, IP_MULTICAST_TTL, 7}, {"u6", 0, IP_MULTICAST_LOOP, 0},
	{"u6", 0, IP_MULTICAST_ALL, 0}, {"u", 0, IP_UNICAST_IF, 1 << 24}, {"f", 0, 51, 40000 | 40100 << 16}, {"u", 0, IP_MULTICAST_IF, 0x0100007f},
	{"u", 0, IP_OPTIONS, 0x01010101}, {"u", 0, IP_PASSSEC, 1},
	{"6", 41, IPV6_RECVPKTINFO, 1}, {"6g", 41, IPV6_UNICAST_HOPS, 9}, {"6", 41, IPV6_MULTICAST_HOPS, 8}, {"6", 41, IPV6_MULTICAST_LOOP, 0},
	{"6g", 41, IPV6_TCLASS, 8}, {"6", 41, IPV6_RECVERR, 1}, {"6", 41, 29, 0}, {"6", 41, 31, 1}, {"6g", 41, IPV6_MTU_DISCOVER, 2},
	{"6", 41, IPV6_RECVHOPLIMIT, 1}, {"6", 41, IPV6_RECVRTHDR, 1}, {"6", 41, IPV6_RECVHOPOPTS, 1}, {"6", 41, IPV6_RECVDSTOPTS, 1},
	{"6", 41, IPV6_RECVTCLASS, 1}, {"6", 41, IPV6_RECVPATHMTU, 1}, {"6", 41, IPV6_DONTFRAG, 1}, {"6", 41, 70, 0}, {"6g", 41, 72, 1},
	{"6g", 41, 73, 3}, {"6", 41, 74, 1}, {"6", 41, 76, 1 << 24}, {"6", 41, 77, 1}, {"g", 41, 78, 1}, {"6", 41, 11, 1}, {"6", 41, 33, 1},
	{"6", 41, 2, 1}, {"6", 41, 3, 1}, {"6", 41, 4, 1}, {"6", 41, 5, 1}, {"6", 41, 8, 1}, {"6", 41, 17, 1}, {"g", 41, IPV6_V6ONLY, 1},
	{"cl", 6, TCP_NODELAY, 1}, {"f", 6, TCP_MAXSEG, 1000}, {"d", 6, TCP_CORK, 1}, {"clfg", 6, TCP_KEEPIDLE, 33}, {"clf", 6, TCP_KEEPINTVL, 7},
	{"clf", 6, TCP_KEEPCNT, 4}, {"cf", 6, TCP_SYNCNT, 3}, {"cl", 6, TCP_LINGER2, 17}, {"l", 6, TCP_DEFER_ACCEPT, 5}, {"cf", 6, TCP_WINDOW_CLAMP, 50000},
	{"clf", 6, TCP_USER_TIMEOUT, 12345}, {"cfg", 6, TCP_CONGESTION, 0x6f6e6572}, {"l", 6, TCP_FASTOPEN, 5}, {"f", 6, TCP_FASTOPEN_CONNECT, 1},
	{"l", 6, TCP_FASTOPEN_KEY, 1, 2, 16}, {"l", 6, 34, 1}, {"cf", 6, TCP_NOTSENT_LOWAT, 16384}, {"l", 6, TCP_SAVE_SYN, 1}, {"cd", 6, 36, 1},
	{"c", 6, 37, 1000}, {"c", 6, TCP_THIN_LINEAR_TIMEOUTS, 1}, {"cf", 6, 44, 5000}, {"c", 6, 45, 15000}, {"c", 6, 46, 30000},
	{"u6", 17, 103, 1000}, {"u6", 17, 104, 1}, {"6", 17, 101, 1}, {"6", 17, 102, 1},
	{"n", 270, 3, 1}, {"n", 270, 4, 1}, {"n", 270, 5, 1}, {"n", 270, 10, 1}, {"n", 270, 11, 1}, {"n", 270, 12, 1}, {"n", 270, 1, 5},
};

/* Values that differ on each host or change by themselves. kstate lists them as different. */
static int changes(int level, int number)
{
	static const int all[][2] = {{1, SO_INCOMING_CPU}, {1, 55}, {1, 56}, {1, SO_COOKIE}, {1, 71}, {1, SO_PEERCRED}, {1, SO_PEERGROUPS}, {1, 77}, {1, SO_PEERSEC},
		{6, TCP_INFO}, {6, TCP_CC_INFO}, {6, TCP_TIMESTAMP}, {6, 35}, {6, TCP_SAVED_SYN}, {6, TCP_QUICKACK}, {6, TCP_QUEUE_SEQ}, {6, 41}, {6, 42}, {0, IP_MTU}, {41, IPV6_MTU}, {41, 61}};

	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i][0] == level && all[i][1] == number)
			return 1;
	return 0;
}

/* What can be read of a socket: every number of every level. */
struct view { int error; socklen_t length; unsigned char bytes[64]; };

static void see(int s, struct view v[6][128])
{
	int type;
	socklen_t size = sizeof type;

	MUST(getsockopt(s, SOL_SOCKET, SO_TYPE, &type, &size));
	struct sockaddr_storage peer;
	size = sizeof peer;
	int connected = !getpeername(s, (void *)&peer, &size);

	static const int levels[] = {1, 0, 41, 6, 17, 270};

	for (int l = 0; l < 6; l++)
		for (int n = 1; n < 128; n++) {
			struct view *w = &v[l][n];
			memset(w, 0, sizeof *w);
			if (changes(levels[l], n) || (connected && l == 3 && n == TCP_MAXSEG) || (type == SOCK_STREAM && ((l == 1 && n == IP_MULTICAST_TTL) || (l == 2 && (n == 17 || n == 18)))))
				continue;
			w->length = sizeof w->bytes;
			w->error = getsockopt(s, levels[l], n, w->bytes, &w->length) ? errno : 0;
		}
}

static void options(void)
{
	static struct view before[24][6][128], after[6][128];
	static const char *kinds = "cdlfgu6vwSTDQneamLbp";
	static const int levels[] = {1, 0, 41, 6, 17, 270};
	struct sockaddr_in6 any = {.sin6_family = AF_INET6}, here = local6(0);
	int of[128] = {0}, p[2];

	pair(p);
	of['c'] = p[0], of['d'] = p[1];
	of['l'] = listener();
	of['f'] = MUST(socket(AF_INET, SOCK_STREAM, 0));
	of['g'] = MUST(socket(AF_INET6, SOCK_STREAM, 0));
	of['u'] = udp(), of['v'] = MUST(socket(AF_INET, SOCK_DGRAM, 0)), of['w'] = udp();
	of['6'] = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
	MUST(bind(of['6'], (void *)&any, sizeof any));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	of['S'] = p[0], of['T'] = p[1];
	MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, p));
	of['D'] = p[0];
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, p));
	of['Q'] = p[0];
	of['n'] = MUST(socket(AF_NETLINK, SOCK_RAW, 0));
	struct sockaddr_nl nl = {.nl_family = AF_NETLINK};
	MUST(bind(of['n'], (void *)&nl, sizeof nl));
	struct sock_filter f[] = {{0x6, 0, 0, 0xffff}};
	struct sock_fprog prog = {1, f};
	MUST(setsockopt(of['u'], 1, SO_ATTACH_FILTER, &prog, sizeof prog));
	MUST(setsockopt(of['u'], 1, SO_LOCK_FILTER, &(int){1}, 4));
	of['L'] = listener6(0);
	pair6(p, of['L']);
	of['e'] = p[0], of['a'] = p[1];
	pair4to6(p, of['L']);
	of['m'] = p[1];
	of['b'] = MUST(socket(AF_INET6, SOCK_STREAM, 0));
	MUST(bind(of['b'], (void *)&here, sizeof here));
	of['p'] = udp6();
	/* Sockets of IPv6 in other states get all that others like them get, if they take it. */
	static const char *like[][2] = {{"e", "cg"}, {"a", "dg"}, {"m", "dg"}, {"L", "lg"}, {"b", "fg"}, {"p", "u6"}};
	for (unsigned i = 0; i < sizeof like / sizeof *like; i++)
		for (unsigned n = 0; n < sizeof settings / sizeof *settings; n++) {
			const struct option *o = &settings[n];
			long long value[2] = {o->value | (o->bytes == 8 ? (long long)o->second << 32 : 0), 0};
			if (strpbrk(o->kinds, like[i][1]))
				setsockopt(of[(int)*like[i][0]], o->level, o->number, value, o->bytes ? o->bytes : 4);
		}
	int set = 0;
	for (unsigned i = 0; i < sizeof settings / sizeof *settings; i++)
		for (const char *k = settings[i].kinds; *k; k++) {
			const struct option *o = &settings[i];
			long long value[2] = {o->value, 0};
			if (o->bytes == 8 && o->second)
				value[0] |= (long long)o->second << 32;
			if (!of[(int)*k] || setsockopt(of[(int)*k], o->level, o->number, value, o->bytes ? o->bytes : 4)) {
				if (errno != ENOPROTOOPT && errno != EOPNOTSUPP && errno != EPERM)
					IS(0, "cannot set %d/%d of %c", o->level, o->number, *k);
				continue;
			}
			set++;
		}
	IS(set > 150, "only %d options could be set", set);
	for (int k = 0; kinds[k]; k++)
		see(of[(int)kinds[k]], before[k]);
	await_move();
	for (int k = 0; kinds[k]; k++) {
		see(of[(int)kinds[k]], after);
		for (int l = 0; l < 6; l++)
			for (int n = 1; n < 128; n++) {
				struct view *b = &before[k][l][n], *a = &after[l][n];
				errno = 0;
				IS(!memcmp(a, b, sizeof *a), "option %d/%d of %c is %d, error %d, length %d and was %d, error %d, length %d", levels[l], n, kinds[k],
				   *(int *)a->bytes, a->error, a->length, *(int *)b->bytes, b->error, b->length);
			}
	}
}

/* read_from reads a message and gives its sender's port. */
static int read_from(int s, char *text, int room, int *port)
{
	struct sockaddr_in6 a = {0};
	socklen_t l = sizeof a;
	int n = recvfrom(s, text, room, MSG_DONTWAIT, (void *)&a, &l);

	*port = ntohs(a.sin6_port);
	text[n > 0 ? n : 0] = 0;
	return n;
}

/* Messages in UDP sockets: from the socket's own host, empty, large, for either IP version, and
   with a filter added later. */
static void datagrams(void)
{
	static char big[60000], got[70000];
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int s = udp(), c = udp(), s6 = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), c6 = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), port, ttl = 77, tos = 0x10;
	struct sockaddr_in a = local(port_of(s));

	struct sockaddr_in6 other = {.sin6_family = AF_INET6, .sin6_port = htons(port_of(s))};
	int o = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), room = 0, later = 0;
	socklen_t size = sizeof room;
	MUST(setsockopt(o, 41, IPV6_V6ONLY, &(int){1}, 4)); /* it shares the port, but gets no message */
	MUST(bind(o, (void *)&other, sizeof other));
	MUST(setsockopt(c, 0, IP_TTL, &ttl, 4));
	MUST(getsockopt(s, 1, SO_RCVBUF, &room, &size));
	MUST(setsockopt(c, 0, IP_TOS, &tos, 4));
	MUST(bind(c6, (void *)&any, sizeof any));
	any.sin6_addr = in6addr_any;
	MUST(bind(s6, (void *)&any, sizeof any));
	struct sockaddr_in a46 = local(port_of(s6));
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(port_of(s6)), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	memset(big, 'b', sizeof big);
	MUST(sendto(c, "one", 3, 0, (void *)&a, sizeof a));
	MUST(sendto(c, "", 0, 0, (void *)&a, sizeof a));
	MUST(sendto(s, "own", 3, 0, (void *)&a, sizeof a));
	MUST(sendto(c, big, sizeof big, 0, (void *)&a, sizeof a));
	MUST(sendto(c6, "six", 3, 0, (void *)&a6, sizeof a6));
	MUST(sendto(c, "four", 4, 0, (void *)&a46, sizeof a46));
	struct sock_filter f[] = {{0x6, 0, 0, 0}};
	struct sock_fprog prog = {1, f};
	MUST(setsockopt(s, 1, SO_ATTACH_FILTER, &prog, sizeof prog));
	MUST(setsockopt(s, 0, IP_RECVTTL, &(int){1}, 4));
	await_move();
	IS(!getsockopt(s, 1, SO_RCVBUF, &later, &size) && later == room, "the socket has room for %d bytes and had for %d", later, room);
	char control[100];
	struct iovec v = {got, sizeof got};
	struct sockaddr_in from = {0};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control, .msg_name = &from, .msg_namelen = sizeof from};
	int n = recvmsg(s, &h, MSG_DONTWAIT), hops = 0;
	for (struct cmsghdr *m = CMSG_FIRSTHDR(&h); m; m = CMSG_NXTHDR(&h, m))
		if (m->cmsg_level == 0 && m->cmsg_type == IP_TTL)
			hops = *(int *)CMSG_DATA(m);
	IS(n == 3 && !memcmp(got, "one", 3) && ntohs(from.sin_port) == port_of(c) && from.sin_addr.s_addr == a.sin_addr.s_addr, "the first message is of %d bytes from port %d", n, ntohs(from.sin_port));
	IS(hops == ttl, "its TTL is %d", hops);
	n = read_from(s, got, 100, &port);
	IS(n == 0 && port == port_of(c), "the second message is of %d bytes from %d", n, port);
	n = read_from(s, got, 100, &port);
	IS(n == 3 && port == port_of(s), "the third message is of %d bytes from %d", n, port);
	n = read_from(s, got, sizeof got - 1, &port);
	IS(n == sizeof big && !memcmp(got, big, n), "the large message is of %d bytes", n);
	n = read_from(s, got, 100, &port);
	IS(n < 0 && errno == EAGAIN, "there is another message, of %d bytes", n);
	n = read_from(s6, got, 100, &port);
	IS(n == 3 && port == port_of(c6), "the message by IPv6 is of %d bytes from %d", n, port);
	n = read_from(s6, got, 100, &port);
	IS(n == 4 && port == port_of(c), "the message by IPv4 is of %d bytes from %d", n, port);
	MUST(sendto(c, "new", 3, 0, (void *)&a, sizeof a));
	n = read_from(s, got, 100, &port);
	IS(n < 0, "the filter is gone");
}

/* Multicast groups that a socket has joined, with their source filters, and its options for
   sending to them. */
static void groups(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET};
	int s = MUST(socket(AF_INET, SOCK_DGRAM, 0)), c = udp(), port;
	struct ip_mreqn one = {.imr_ifindex = 1};
	struct ip_mreq_source from = {0};
	struct ipv6_mreq six = {.ipv6mr_interface = 1};
	char got[100];

	MUST(bind(s, (void *)&any, sizeof any));
	one.imr_multiaddr.s_addr = inet_addr("239.1.2.3");
	MUST(setsockopt(s, 0, IP_ADD_MEMBERSHIP, &one, sizeof one));
	from.imr_multiaddr.s_addr = inet_addr("232.1.1.1");
	from.imr_interface.s_addr = htonl(INADDR_LOOPBACK);
	from.imr_sourceaddr.s_addr = inet_addr("127.0.0.9");
	MUST(setsockopt(s, 0, IP_ADD_SOURCE_MEMBERSHIP, &from, sizeof from));
	int s6 = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
	inet_pton(AF_INET6, "ff01::77", &six.ipv6mr_multiaddr);
	MUST(setsockopt(s6, 41, IPV6_ADD_MEMBERSHIP, &six, sizeof six));
	struct in_addr by = {htonl(INADDR_LOOPBACK)};
	MUST(setsockopt(c, 0, IP_MULTICAST_IF, &by, sizeof by));
	/* The same by interface. */
	struct ifreq link = {.ifr_name = "eth0"};
	struct ip_mreq two = {.imr_multiaddr = {inet_addr("239.1.2.4")}};
	int e = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(bind(e, (void *)&any, sizeof any));
	MUST(ioctl(e, SIOCGIFADDR, &link));
	two.imr_interface = ((struct sockaddr_in *)&link.ifr_addr)->sin_addr;
	MUST(setsockopt(e, 0, IP_ADD_MEMBERSHIP, &two, sizeof two));
	MUST(setsockopt(e, 0, IP_MULTICAST_IF, &two.imr_interface, 4));
	await_move();
	struct sockaddr_in by_link = {.sin_family = AF_INET, .sin_port = htons(port_of(e)), .sin_addr = two.imr_multiaddr};
	IS(sendto(e, "link", 4, 0, (void *)&by_link, sizeof by_link) == 4, "cannot send to a group by the network's link");
	struct pollfd f = {e, POLLIN};
	IS(poll(&f, 1, 2000) == 1 && recv(e, got, sizeof got, MSG_DONTWAIT) == 4, "what was sent by the network's link does not come back");
	IS(!setsockopt(e, 0, IP_DROP_MEMBERSHIP, &two, sizeof two), "cannot leave the group of the network's link");
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port_of(s)), .sin_addr = one.imr_multiaddr};
	IS(sendto(c, "all", 3, 0, (void *)&to, sizeof to) == 3, "cannot send to a group");
	usleep(100000);
	int n = read_from(s, got, 99, &port);
	IS(n == 3, "what was sent to the group is of %d bytes", n);
	struct { struct in_addr group, link; unsigned mode, count; struct in_addr source[4]; } filter = {from.imr_multiaddr, from.imr_interface, 0, 4};
	socklen_t l = sizeof filter;
	IS(!getsockopt(s, 0, IP_MSFILTER, &filter, &l) && filter.mode == MCAST_INCLUDE && filter.count == 1 && filter.source[0].s_addr == from.imr_sourceaddr.s_addr,
	   "of the group with a source: mode %d, %d sources", filter.mode, filter.count);
	IS(!setsockopt(s, 0, IP_DROP_MEMBERSHIP, &one, sizeof one), "cannot leave the group");
	IS(!setsockopt(s, 0, IP_DROP_SOURCE_MEMBERSHIP, &from, sizeof from), "cannot leave the group with a source");
	IS(!setsockopt(s6, 41, IPV6_DROP_MEMBERSHIP, &six, sizeof six), "cannot leave the group of IPv6");
}

/* Data that waits in a TCP connection, in either direction, and its segment size. */
static void streams(void)
{
	char got[20];
	int p[2], before, after;
	socklen_t l = sizeof before;

	pair(p);
	MUST(getsockopt(p[0], 6, TCP_MAXSEG, &before, &l));
	MUST(send(p[0], "abc", 3, 0));
	MUST(setsockopt(p[0], 6, TCP_CORK, &(int){1}, 4));
	MUST(send(p[0], "def", 3, 0));
	await_move();
	MUST(getsockopt(p[0], 6, TCP_MAXSEG, &after, &l));
	IS(after >= before, "segments carry %d bytes and carried %d", after, before);
	MUST(setsockopt(p[0], 6, TCP_CORK, &(int){0}, 4));
	usleep(200000);
	int n = recv(p[1], got, sizeof got, MSG_DONTWAIT);
	IS(n == 6 && !memcmp(got, "abcdef", 6), "%d bytes waited", n);
	IS(send(p[1], "back", 4, 0) == 4 && recv(p[0], got, 4, MSG_WAITALL) == 4, "nothing comes back");
}

/* both_ways says whether what is written at either end of a connection arrives. */
static int both_ways(int a, int b)
{
	char got[4];

	return send(a, "to", 2, 0) == 2 && recv(b, got, 2, MSG_WAITALL) == 2 && send(b, "fro", 3, 0) == 3 && recv(a, got, 3, MSG_WAITALL) == 3;
}

/* Connections of IPv6: both ends, one whose listener is closed, one of IPv4 to a listener of both, UDP; and listeners for new ones. */
static void six(void)
{
	int l = listener6(0), only = listener6(1), gone = listener6(1), p[2], q[2], m[2], u = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), c = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
	struct sockaddr_in6 a = local6(0);
	char got[4];

	pair6(p, l), pair6(q, gone), pair4to6(m, l);
	close(gone);
	MUST(bind(u, (void *)&a, sizeof a));
	a = local6(port_of(u));
	MUST(connect(c, (void *)&a, sizeof a));
	MUST(send(p[0], "wait", 4, 0));
	int port = port_of(p[0]);
	await_move();
	IS(recv(p[1], got, 4, MSG_DONTWAIT) == 4, "what was sent is not there");
	IS(port_of(p[0]) == port, "its port is %d and was %d", port_of(p[0]), port);
	IS(both_ways(p[0], p[1]), "a connection does not work");
	IS(both_ways(q[0], q[1]), "one whose listener is closed does not work");
	IS(both_ways(m[0], m[1]), "one of IPv4 does not work");
	IS(send(c, "udp", 3, 0) == 3 && recv(u, got, 3, 0) == 3, "a message does not arrive");
	pair6(p, l), pair6(q, only), pair4to6(m, l);
	IS(both_ways(p[0], p[1]) && both_ways(q[0], q[1]) && both_ways(m[0], m[1]), "a new connection does not work");
}

/* A connection with one end shut down for writing: the other end still sends, at once. */
static void half(void)
{
	char got[20];
	int p[2];

	pair(p);
	MUST(send(p[0], "half", 4, 0));
	MUST(shutdown(p[0], SHUT_WR));
	usleep(200000);
	await_move();
	IS(recv(p[1], got, sizeof got, MSG_DONTWAIT) == 4, "what was sent is not there");
	IS(recv(p[1], got, sizeof got, MSG_DONTWAIT) == 0, "its end is not there");
	double begun = now(CLOCK_MONOTONIC);
	IS(send(p[1], "back", 4, MSG_NOSIGNAL) == 4, "cannot send back");
	struct pollfd f = {p[0], POLLIN};
	poll(&f, 1, 20000);
	IS(recv(p[0], got, sizeof got, MSG_DONTWAIT) == 4, "what was sent back is not there");
	IS(now(CLOCK_MONOTONIC) - begun < 0.5, "it took %.3f s", now(CLOCK_MONOTONIC) - begun);
	close(p[1]);
	poll(&f, 1, 5000);
	IS(recv(p[0], got, sizeof got, MSG_DONTWAIT) == 0, "the end is not there");
}

/* Data that waits in Unix sockets of each kind. */
static void unixes(void)
{
	static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
	int p[3][2];
	char got[20];

	for (int i = 0; i < 3; i++) {
		MUST(socketpair(AF_UNIX, types[i], 0, p[i]));
		MUST(send(p[i][0], "abc", 3, 0));
		MUST(send(p[i][0], "def", 3, 0));
	}
	await_move();
	for (int i = 0; i < 3; i++) {
		int n = recv(p[i][1], got, sizeof got, MSG_DONTWAIT);
		IS(n == (i ? 3 : 6), "of kind %d waited %d bytes", i, n);
		IS(send(p[i][1], "back", 4, 0) == 4 && recv(p[i][0], got, sizeof got, MSG_DONTWAIT) == 4, "nothing comes back of kind %d", i);
	}
}

/* Messages whose sender has a name, in the file system or abstract, among others. */
static void letters(void)
{
	struct sockaddr_un server = {AF_UNIX, "/tmp/letters.server"}, client = {AF_UNIX, "/tmp/letters.client"}, hidden = {AF_UNIX, "\0letters"}, from;
	int s = MUST(socket(AF_UNIX, SOCK_DGRAM, 0)), c = MUST(socket(AF_UNIX, SOCK_DGRAM, 0)), h = MUST(socket(AF_UNIX, SOCK_DGRAM, 0)), n = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
	socklen_t whole = sizeof server, l;
	char got[20];

	unlink(server.sun_path);
	unlink(client.sun_path);
	MUST(bind(s, (void *)&server, whole));
	MUST(bind(c, (void *)&client, whole));
	MUST(bind(h, (void *)&hidden, sizeof(sa_family_t) + 8));
	MUST(sendto(c, "one", 3, 0, (void *)&server, whole));
	MUST(sendto(n, "four", 4, 0, (void *)&server, whole));
	MUST(sendto(h, "seven", 5, 0, (void *)&server, whole));
	MUST(sendto(c, "last", 4, 0, (void *)&hidden, sizeof(sa_family_t) + 8));
	await_move();
	memset(&from, 0, l = sizeof from);
	IS(recvfrom(s, got, sizeof got, MSG_DONTWAIT, (void *)&from, &l) == 3 && !strcmp(from.sun_path, client.sun_path), "the first message is from %s", from.sun_path);
	l = sizeof from;
	IS(recvfrom(s, got, sizeof got, MSG_DONTWAIT, (void *)&from, &l) == 4 && l <= sizeof(sa_family_t), "the second message has a sender of %d bytes", l);
	l = sizeof from;
	IS(recvfrom(s, got, sizeof got, MSG_DONTWAIT, (void *)&from, &l) == 5 && l == sizeof(sa_family_t) + 8 && !memcmp(from.sun_path, hidden.sun_path, 8), "the third message has a sender of %d bytes", l);
	IS(recv(s, got, sizeof got, MSG_DONTWAIT) < 0, "there are more");
	l = sizeof from;
	IS(recvfrom(h, got, sizeof got, MSG_DONTWAIT, (void *)&from, &l) == 4 && !strcmp(from.sun_path, client.sun_path), "the last message is from %s", from.sun_path);
	IS(sendto(h, "back", 4, 0, (void *)&from, l) == 4, "cannot answer");
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

/* taken reads a message with an open file. */
static int taken(int s)
{
	char control[200] = {0}, data[20];
	struct iovec v = {data, sizeof data};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int n = recvmsg(s, &h, MSG_DONTWAIT), fd = -1;
	struct cmsghdr *m = CMSG_FIRSTHDR(&h);

	if (n == 4 && m && m->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(m), sizeof fd);
	return fd;
}

/* Open files in messages in Unix sockets: one still open at the sender, one open nowhere else,
   and one whose sender is closed. */
static void files(void)
{
	int p[2], q[2], f[2], fd, tmp = MUST(open("/tmp/files.f", O_CREAT | O_RDWR | O_TRUNC, 0600));
	char got[20];

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, q));
	MUST(pipe(f));
	MUST(write(f[1], "inside", 6));
	MUST(write(tmp, "text", 4));
	give(p[0], f[0]);
	close(f[0]);
	close(p[0]);
	give(q[0], tmp);
	close(tmp);
	give(q[0], f[1]);
	await_move();
	fd = taken(p[1]);
	IS(fd >= 0 && read(fd, got, sizeof got) == 6, "the pipe is lost");
	fd = taken(q[1]);
	IS(fd >= 0 && pread(fd, got, sizeof got, 0) == 4, "the file is lost");
	fd = taken(q[1]);
	IS(fd >= 0 && write(fd, "x", 1) == 1, "the pipe's end is lost");
}

/* A connection to a Unix socket that waits to be accepted, without data. */
static void accepts(void)
{
	struct sockaddr_un a = {AF_UNIX, "/tmp/accepts"};
	int s = MUST(socket(AF_UNIX, SOCK_STREAM, 0)), c = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	char got[4];

	unlink(a.sun_path);
	MUST(bind(s, (void *)&a, sizeof a));
	MUST(listen(s, 5));
	MUST(connect(c, (void *)&a, sizeof a));
	await_move();
	int d = accept(s, 0, 0);
	IS(d >= 0 && send(c, "data", 4, 0) == 4 && recv(d, got, 4, 0) == 4, "the connection is lost");
}

/* The peer of a Unix socket: after a move it may be root. */
static void peers(void)
{
	struct ucred before, after;
	socklen_t l = sizeof before;
	int p[2];

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	MUST(getsockopt(p[0], SOL_SOCKET, SO_PEERCRED, &before, &l));
	await_move();
	MUST(getsockopt(p[0], SOL_SOCKET, SO_PEERCRED, &after, &l));
	IS(after.pid == before.pid && (after.uid == before.uid || after.uid == 0), "the peer is process %d of user %d and was process %d of user %d", after.pid, after.uid, before.pid, before.uid);
}

/* Sockets that a program of a container may not make. */
static void rights(void)
{
	await_move();
	IS(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) < 0 && errno == EPERM, "a raw socket can be made");
	IS(socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EPERM, "a packet socket can be made");
	IS(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP) < 0, "a socket for echoes can be made");
}

static const struct state all[] = {
	{"options", options}, {"datagrams", datagrams}, {"groups", groups}, {"streams", streams}, {"half", half}, {"six", six}, {"unix", unixes}, {"letters", letters}, {"files", files}, {"accepts", accepts}, {"rights", rights}, {"peers", peers},
};
MAIN(all)
