package container_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// owing accepts a connection and reads it to its end, once a file exists. Or it makes a
// connection, writes as much as fits, closes it and prints how much that was.
const owing = `
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char b[65536];
int main(int n, char **a) {
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7777) };
	int s = socket(AF_INET, SOCK_STREAM, 0);
	long all = 0, k;
	inet_pton(AF_INET, a[2], &at.sin_addr);
	if (*a[1] == 'r') {
		int one = 1;
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(s, (void *)&at, sizeof at) || listen(s, 1)) return 1;
		puts("listens");
		fflush(stdout);
		close(open("listens", O_CREAT, 0600));
		int c = accept(s, 0, 0);
		while (access(a[3], F_OK)) usleep(10000);
		while ((k = read(c, b, sizeof b)) > 0) all += k;
		if (k < 0) perror("read");
	} else {
		if (connect(s, (void *)&at, sizeof at)) return 2;
		fcntl(s, F_SETFL, O_NONBLOCK);
		for (int quiet = 0; quiet < 20; usleep(10000))
			for (quiet++; (k = write(s, b, sizeof b)) > 0; quiet = 0) all += k;
	}
	printf("%ld bytes\n", all);
	return 0;
}
`

// TestClosedConnections: data that a program wrote to a connection before closing it reaches the
// peer, although no program has the connection when the guest moves. Until the peer reads, the
// guest stays.
func TestClosedConnections(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	if o := j.do(0, time.Minute, sh("cat >o.c && cc -o owing o.c"), owing); o.exit.Code != 0 {
		t.Fatalf("compile: %+v", o)
	}
	peer := subnet.GuestAddr(0).String()
	for n, late := range []bool{false, true} {
		may := fmt.Sprintf("may%d", n)
		read := func() {
			if err := os.WriteFile(filepath.Join(j.files, may), nil, 0o644); err != nil {
				t.Error(err)
			}
		}
		os.Remove(filepath.Join(j.files, "listens"))
		got := make(chan outcome, 1)
		go func() { got <- j.do(0, time.Minute, sh("./owing r "+peer+" "+may), "") }()
		testkit.Until(t, 20*time.Second, "somebody listens", func() bool {
			_, err := os.Stat(filepath.Join(j.files, "listens"))
			return err == nil
		})
		wrote := j.do(1, time.Minute, sh("./owing w "+peer), "")
		if wrote.exit.Code != 0 {
			t.Fatalf("write: %+v", wrote)
		}
		if late {
			if _, err := j.tryMove(1, n); err == nil || !strings.Contains(err.Error(), "the peer does not read") {
				t.Errorf("the guest was moved away from what it owes: %v", err)
			}
			read()
		} else {
			time.AfterFunc(300*time.Millisecond, read)
			j.move(1, n)
		}
		if o := <-got; o.exit.Code != 0 || !strings.HasSuffix(o.stdout, wrote.stdout) {
			t.Errorf("%q was written, and read: %+v", wrote.stdout, o)
		}
	}
}
