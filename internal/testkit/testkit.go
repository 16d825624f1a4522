// Package testkit is the base of contract and system tests: real network namespaces as
// hosts, the machine's guest images, the rule for skipping such tests, waiting with a limit,
// and the check that a test leaves nothing behind.
//
// It must not know what it is used to test: it imports no other package of Pagurus. Its
// tests run against the kernel.
package testkit

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Root says that a test needs root and these programs. With -short the test is skipped.
// Otherwise a missing one is an error, because a skip would hide a broken installation.
func Root(t testing.TB, programs ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and namespaces: run make test")
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root; run it as root, or the quick ones only with -short")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("this test needs the program %s; scripts/setup installs it", p)
		}
	}
}

// Until waits until holds returns true, and fails the test after the limit. The limit is
// what a busy machine may take, not an asserted figure.
func Until(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	const between = 10 * time.Millisecond
	for end := time.Now().Add(limit); !holds(); time.Sleep(between) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", limit, what)
		}
	}
}

// Meanwhile runs f beside the test and returns a function that waits for it. A test that
// fails earlier waits too: f must not report a failure after the test's end.
func Meanwhile(t testing.TB, f func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	wait = func() { <-done }
	t.Cleanup(wait)
	return wait
}

// token is a random word, short enough for a name in the kernel.
func token(t testing.TB) string {
	t.Helper()
	var b [3]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(b[:])
}
