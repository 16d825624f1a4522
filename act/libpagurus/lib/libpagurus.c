/*
 * libpagurus: see pagurus.h. It asks the guest's agent through a socket, a line for each call:
 *
 *   pagurus1 VERB ARGUMENTS                 at most 512 bytes
 *   pagurus1 CODE TEXT, KEY VALUE, …, ""    a line each, at most 8 KiB
 *
 * It uses nothing but the kernel and, if the program has one, its C library's getenv, so that it fits any
 * C library. Built by
 *
 *   gcc -Os -fPIC -shared -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
 *     -fno-tree-loop-distribute-patterns -fvisibility=hidden -Wall -Wl,--build-id=none -Wl,-z,noseparate-code \
 *     -Wl,-soname,libpagurus.so.0 -s -o libpagurus.so libpagurus.c
 */
#pragma GCC visibility push(default)
#include "pagurus.h"
#pragma GCC visibility pop

#ifndef __x86_64__
#error "libpagurus knows the system calls of x86-64 only"
#endif

extern char *getenv(const char *) __attribute__((weak, visibility("default")));

enum { READ = 0, CLOSE = 3, POLL = 7, SOCKET = 41, CONNECT = 42, SENDTO = 44, SETSOCKOPT = 54, CLOCK_GETTIME = 228 };
enum { AF_UNIX = 1, SOCK_STREAM_CLOEXEC = 1 | 02000000, MSG_NOSIGNAL = 0x4000, POLLIN = 1, SOL_SOCKET = 1, SO_SNDTIMEO = 21 };
enum { EINTR = 4, EAGAIN = 11 };
enum { LINE = 512, REPLY = 8192, TEXT = 512, PATIENCE_MS = 10000, MARKS_MS = 20, BUSY_MS = 1100, GROW_MS = 600000 };

struct unix_address { unsigned short family; char path[108]; };
struct moment { long s, ns; };
struct polled { int fd; short events, got; };

static __thread char text[TEXT];
static __thread long patience = PATIENCE_MS; /* for an answer */

static long call(long n, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
}

static long now_ms(void)
{
	struct moment t;
	call(CLOCK_GETTIME, 1, (long)&t, 0, 0, 0, 0);
	return t.s * 1000 + t.ns / 1000000;
}

/* A text that grows in a buffer, and is cut where that is full. */
struct line { char *at; int n, most; };

static void add(struct line *l, const char *s)
{
	while (*s && l->n < l->most - 1)
		l->at[l->n++] = *s++;
	l->at[l->n] = 0;
}

static void add_number(struct line *l, long v)
{
	char digits[24];
	int i = sizeof digits;
	int minus = v < 0;
	unsigned long u = minus ? 0UL - (unsigned long)v : (unsigned long)v;
	digits[--i] = 0;
	do
		digits[--i] = '0' + u % 10;
	while (u /= 10);
	if (minus)
		digits[--i] = '-';
	add(l, digits + i);
}

static double number(const char *s)
{
	double v = 0, scale = 1;
	int minus = *s == '-', fraction = 0;
	for (s += minus; (*s >= '0' && *s <= '9') || (*s == '.' && !fraction); s++) {
		if (*s == '.') {
			fraction = 1;
			continue;
		}
		v = v * 10 + (*s - '0');
		if (fraction)
			scale *= 10;
	}
	return (minus ? -v : v) / scale;
}

/* Copies a word, or with rest all until the end of the line. Gives what follows. */
static const char *word(const char *s, char *out, int size, int rest)
{
	int n = 0;
	for (; *s && *s != '\n' && (rest || *s != ' '); s++)
		if (n < size - 1)
			out[n++] = *s;
	out[n] = 0;
	return *s == ' ' ? s + 1 : s;
}

/* The value of the first line of a key at or after s; 0: there is none. */
static const char *value(const char *s, const char *key)
{
	while (*s) {
		const char *k = key;
		const char *at = s;
		while (*k && *at == *k)
			at++, k++;
		if (!*k && *at == ' ')
			return at + 1;
		while (*s && *s != '\n')
			s++;
		if (*s)
			s++;
	}
	return 0;
}

static void copy(const char *reply, const char *key, char *out, int size)
{
	const char *v = value(reply, key);
	out[0] = 0;
	if (v)
		word(v, out, size, 1);
}

static double quantity(const char *reply, const char *key)
{
	const char *v = value(reply, key);
	return v ? number(v) : 0;
}

static void clear(void *at, unsigned long n)
{
	char *c = at;
	while (n--)
		*c++ = 0;
}

/* Gives a descriptor, or -1: there is nobody, or -2: it takes too long. */
static int dial(void)
{
	struct { long s, us; } patience = { PATIENCE_MS / 1000, 0 };
	struct unix_address to;
	struct line path = { to.path, 0, sizeof to.path };
	const char *named = getenv ? getenv("PAGURUS_SOCKET") : 0;
	long fd;
	clear(&to, sizeof to);
	to.family = AF_UNIX;
	add(&path, named && *named ? named : "/run/pagurus/job.sock");
	fd = call(SOCKET, AF_UNIX, SOCK_STREAM_CLOEXEC, 0, 0, 0, 0);
	if (fd < 0)
		return -1;
	call(SETSOCKOPT, fd, SOL_SOCKET, SO_SNDTIMEO, (long)&patience, sizeof patience, 0); /* of connect, too: unix(7) */
	for (;;) {
		long e = call(CONNECT, fd, (long)&to, sizeof to, 0, 0, 0);
		if (e == 0)
			return (int)fd;
		if (e != -EINTR) {
			call(CLOSE, fd, 0, 0, 0, 0, 0);
			return e == -EAGAIN ? -2 : -1;
		}
	}
}

static int sent(int fd, const char *s, int n)
{
	while (n > 0) {
		long did = call(SENDTO, fd, (long)s, n, MSG_NOSIGNAL, 0, 0);
		if (did == -EINTR)
			continue;
		if (did <= 0)
			return 0;
		s += did, n -= did;
	}
	return 1;
}

/* Reads until the other side closes. Gives how many bytes came, or -1 if it takes too long. */
static int receive(int fd, char *reply)
{
	long end = now_ms() + patience;
	int n = 0;
	while (n < REPLY - 1) {
		struct polled p = { fd, POLLIN, 0 };
		long left = end - now_ms();
		long did = left > 0 ? call(POLL, (long)&p, 1, left > patience ? patience : left, 0, 0, 0) : 0;
		if (did == -EINTR)
			continue;
		if (did <= 0)
			return -1;
		did = call(READ, fd, (long)(reply + n), REPLY - 1 - n, 0, 0, 0);
		if (did == -EINTR || did == -EAGAIN)
			continue;
		if (did <= 0)
			break;
		n += did;
	}
	reply[n] = 0;
	return n;
}

/* Asks, and has the code, with the text in text and all lines in reply. */
static int ask(struct line *request, char *reply)
{
	int fd = dial(), n = 0, code;
	const char *rest;
	char first[16];
	text[0] = reply[0] = 0;
	if (fd < 0)
		return fd == -2 ? PAGURUS_LATE : PAGURUS_NONE;
	if (request->n >= LINE - 2) {
		call(CLOSE, fd, 0, 0, 0, 0, 0);
		return PAGURUS_INVALID;
	}
	add(request, "\n");
	sent(fd, request->at, request->n); /* who is too busy answers without reading it */
	n = receive(fd, reply);
	call(CLOSE, fd, 0, 0, 0, 0, 0);
	if (n < 0)
		return PAGURUS_LATE;
	rest = value(reply, "pagurus1");
	if (!rest || n < 2 || reply[n - 1] != '\n' || reply[n - 2] != '\n')
		return PAGURUS_FAULT;
	rest = word(rest, first, sizeof first, 0);
	word(rest, text, sizeof text, 1);
	code = (int)number(first);
	return code >= 0 && code <= PAGURUS_FAULT ? code : PAGURUS_FAULT;
}

/* Each call that is passed to the controller has room for a whole answer on its stack. */
#define ASKS \
	char request_[LINE], reply[REPLY]; \
	struct line line = { request_, 0, sizeof request_ }; \
	add(&line, "pagurus1 ")

#include "regions.h"

static const char *whom(int what) { return what == PAGURUS_ME ? " me" : what == PAGURUS_JOB ? " job" : 0; }

int pagurus_where(struct pagurus_place *place)
{
	int code;
	ASKS;
	clear(place, sizeof *place);
	add(&line, "where");
	if ((code = ask(&line, reply)) != PAGURUS_OK)
		return code;
	copy(reply, "job", place->job, sizeof place->job);
	copy(reply, "guest", place->guest, sizeof place->guest);
	copy(reply, "host", place->host, sizeof place->host);
	copy(reply, "site", place->site, sizeof place->site);
	place->guests = (int)quantity(reply, "guests");
	place->here = (int)quantity(reply, "here");
	place->cpus = (int)quantity(reply, "cpus");
	place->load = quantity(reply, "load");
	return code;
}

int pagurus_neighbours(struct pagurus_place *places, int most, int *count)
{
	int code, n = 0;
	const char *at;
	ASKS;
	*count = 0;
	add(&line, "where");
	if ((code = ask(&line, reply)) != PAGURUS_OK)
		return code;
	for (at = value(reply, "peer"); at; at = value(at, "peer"), n++) {
		struct pagurus_place *p = places + n;
		if (n >= most)
			continue;
		clear(p, sizeof *p);
		copy(reply, "job", p->job, sizeof p->job);
		at = word(at, p->guest, sizeof p->guest, 0);
		at = word(at, p->host, sizeof p->host, 0);
		at = word(at, p->site, sizeof p->site, 1);
	}
	*count = n;
	return code;
}

int pagurus_distances(struct pagurus_distance *others, int most, int *count)
{
	int code, n = 0;
	const char *at;
	ASKS;
	*count = 0;
	add(&line, "distances");
	if ((code = ask(&line, reply)) != PAGURUS_OK)
		return code;
	for (at = value(reply, "far"); at; at = value(at, "far"), n++) {
		struct pagurus_distance *d = others + n;
		char place[8], latency[32], speed[32];
		if (n >= most)
			continue;
		clear(d, sizeof *d);
		at = word(at, d->guest, sizeof d->guest, 0);
		at = word(at, place, sizeof place, 0);
		at = word(at, latency, sizeof latency, 0);
		at = word(at, speed, sizeof speed, 0);
		at = word(at, d->host, sizeof d->host, 1);
		d->place = (int)number(place);
		d->latency = number(latency);
		d->bandwidth = number(speed);
	}
	*count = n;
	return code;
}

/* A quantity of a price, of the kind named by what. */
static double priced(const char *reply, const char *what, const char *key)
{
	char name[32];
	struct line l = { name, 0, sizeof name };
	add(&l, what);
	add(&l, key);
	return quantity(reply, name);
}

static int cost(int what, struct pagurus_price *price, const char *kind)
{
	int code;
	ASKS;
	clear(price, sizeof *price);
	if (!whom(what))
		return PAGURUS_INVALID;
	add(&line, "cost");
	add(&line, whom(what));
	if ((code = ask(&line, reply)) != PAGURUS_OK)
		return code;
	copy(reply, "to", price->to, sizeof price->to);
	if (!value(reply, "mark-seconds")) /* nothing is known of marked moments */
		kind = "";
	price->seconds = priced(reply, kind, "seconds");
	price->seconds_low = priced(reply, kind, "seconds-low");
	price->seconds_high = priced(reply, kind, "seconds-high");
	price->downtime = priced(reply, kind, "downtime");
	price->bytes = (long long)priced(reply, kind, "bytes");
	price->converges = priced(reply, kind, "converges") != 0;
	return code;
}

int pagurus_cost(int what, struct pagurus_price *price) { return cost(what, price, ""); }

int pagurus_cost_at_mark(int what, struct pagurus_price *price) { return cost(what, price, "mark-"); }

int pagurus_move(int what, int how, int rank)
{
	ASKS;
	if (!whom(what) || how < PAGURUS_BETTER || how > PAGURUS_WITH_RANK)
		return PAGURUS_INVALID;
	add(&line, "move");
	add(&line, whom(what));
	add(&line, how == PAGURUS_BETTER ? " better" : how == PAGURUS_AWAY ? " away" : " rank ");
	if (how == PAGURUS_WITH_RANK)
		add_number(&line, rank);
	return ask(&line, reply);
}

int pagurus_checkpoint(void)
{
	ASKS;
	add(&line, "checkpoint");
	return ask(&line, reply);
}

/* Guests that start take their time. While another program's are started, or too much was asked, it is asked again. */
static int grown(const char *what, int n, double seconds, struct pagurus_growth *growth)
{
	long most = seconds < GROW_MS / 1000 ? (long)(seconds * 1000) : GROW_MS;
	long end = now_ms() + most;
	int code;
	char request[LINE], reply[REPLY];
	clear(growth, sizeof *growth);
	if (n < 1 || !(seconds > 0))
		return PAGURUS_INVALID;
	for (;;) {
		struct line line = { request, 0, sizeof request };
		long left = end - now_ms();
		left = left < 1 ? 1 : left > most ? most : left;
		add(&line, "pagurus1 grow ");
		add(&line, what);
		add_number(&line, n);
		add(&line, " ");
		add_number(&line, left);
		patience = left + 2 * PATIENCE_MS;
		code = ask(&line, reply);
		patience = PATIENCE_MS;
		if (code != PAGURUS_BUSY || left <= BUSY_MS)
			break;
		call(POLL, 0, 0, BUSY_MS, 0, 0, 0);
	}
	if (code != PAGURUS_OK)
		return code;
	growth->guests = (int)quantity(reply, "count");
	growth->first = (int)quantity(reply, "first");
	growth->slots = (int)quantity(reply, "slots");
	copy(reply, "hosts", growth->hosts, sizeof growth->hosts);
	return code;
}

int pagurus_grow(int guests, double seconds, struct pagurus_growth *growth) { return grown("guests ", guests, seconds, growth); }

int pagurus_grow_ranks(int ranks, double seconds, struct pagurus_growth *growth) { return grown("ranks ", ranks, seconds, growth); }

/* Marks come in loops: so many of them need not be told. */
static volatile long marked_ms, mark_code = PAGURUS_NONE, holds;

int pagurus_cheap_now(void)
{
	long at = now_ms(), held = holds, scratch = region_bytes();
	ASKS;
	if (marked_ms && at - marked_ms >= 0 && at - marked_ms < MARKS_MS)
		return (int)mark_code;
	add(&line, "cheap");
	if (scratch) {
		add(&line, " ");
		add_number(&line, scratch);
	}
	mark_code = ask(&line, reply);
	if (mark_code == PAGURUS_OK && scratch && value(reply, "give")) /* a move waits for it */
		mark_code = give_regions(&line, reply);
	if (held == holds) /* else another thread's "not now" may be later, which the next one ends */
		marked_ms = at;
	return (int)mark_code;
}

int pagurus_not_now(double seconds)
{
	ASKS;
	if (!(seconds >= 0))
		return PAGURUS_INVALID;
	add(&line, "not-now ");
	add_number(&line, seconds > 3600 ? 3600000L : (long)(seconds * 1000));
	holds++;
	marked_ms = 0; /* a cheap moment that follows ends it, and must be told */
	return ask(&line, reply);
}

int pagurus_remark(int level, const char *says)
{
	ASKS;
	if (level < PAGURUS_NOTE || level > PAGURUS_ILL || !says)
		return PAGURUS_INVALID;
	add(&line, level == PAGURUS_NOTE ? "remark note " : level == PAGURUS_WARNING ? "remark warning " : "remark ill ");
	add(&line, says);
	return ask(&line, reply);
}

const char *pagurus_text(void) { return text; }
