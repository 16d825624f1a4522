package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// opened returns a cache with a script as the host's own guest agent. The test removes it at its
// end.
func opened(t *testing.T, dir string) *BinaryCache {
	t.Helper()
	own := filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(own, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenBinaryCache(dir, own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(true) })
	return s
}

func lacks(t *testing.T, s *BinaryCache, digest string) bool {
	t.Helper()
	lacks, err := s.Lacks(digest)
	if err != nil {
		t.Error(err)
	}
	return lacks
}

const script = "#!/bin/sh\necho mine\n"

func TestBinaryCache(t *testing.T) {
	testkit.Root(t)
	dir := filepath.Join(t.TempDir(), "cache")
	s := opened(t, dir)
	if s.Own != digestOf(script) || lacks(t, s, s.Own) {
		t.Fatalf("the host's own is %q", s.Own)
	}
	if out, err := exec.Command(s.Path(s.Own)).Output(); err != nil || string(out) != "mine\n" {
		t.Errorf("run, it says %q: %v", out, err)
	}
	p, err := s.ReceiveBinary(digestOf("another"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"ano", "ther"} {
		if _, err := io.WriteString(p, part); err != nil {
			t.Fatal(err)
		}
	}
	if !lacks(t, s, digestOf("another")) {
		t.Error("it is there before it is whole")
	}
	if err := p.Close(); err != nil || lacks(t, s, digestOf("another")) {
		t.Errorf("it is not there: %v", err)
	}
	if err := s.KeepOnly(func(digest string) bool { return digest == digestOf("another") }); err != nil {
		t.Fatal(err)
	}
	if lacks(t, s, s.Own) || lacks(t, s, digestOf("another")) {
		t.Error("what is needed is gone")
	}
	if err := s.KeepOnly(func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if all, _ := os.ReadDir(dir); len(all) != 1 || all[0].Name() != s.Own {
		t.Errorf("kept are %v", all)
	}
}

// TestNext: a later process finds the cache's complete files. A process that closes the cache
// removes it only if no other process needs it.
func TestNext(t *testing.T) {
	testkit.Root(t)
	dir := filepath.Join(t.TempDir(), "cache")
	s := opened(t, dir)
	first, err := os.Stat(s.Path(s.Own))
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.ReceiveBinary(digestOf("another"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(false); err != nil {
		t.Fatal(err)
	}
	s = opened(t, dir)
	if now, err := os.Stat(s.Path(s.Own)); err != nil || !os.SameFile(first, now) {
		t.Errorf("it has become another file: %v", err)
	}
	if err := p.Drop(); err == nil {
		t.Error("what came only in part is there")
	}
	if p, err = s.ReceiveBinary(digestOf("another")); err != nil {
		t.Fatal(err)
	}
	beside := opened(t, dir)
	if err := beside.Close(true); err != nil || lacks(t, s, s.Own) {
		t.Errorf("another took the cache away: %v", err)
	}
	if err := p.Drop(); err != nil {
		t.Errorf("another took away what was coming: %v", err)
	}
	if err := s.Close(true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
	var none *BinaryCache
	if err := none.Close(true); err != nil {
		t.Error(err)
	}
}

// TestNotWhole: an incomplete or wrong guest agent is never stored.
func TestNotWhole(t *testing.T) {
	testkit.Root(t)
	dir := filepath.Join(t.TempDir(), "cache")
	s := opened(t, dir)
	p, err := s.ReceiveBinary(digestOf("whole"))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(p, "who")
	if err := p.Close(); err == nil {
		t.Error("half of it was taken for it")
	}
	if p, err = s.ReceiveBinary(digestOf("whole")); err != nil {
		t.Fatal(err)
	}
	p.bytes = mostBytes
	if _, err := io.WriteString(p, "x"); err == nil {
		t.Error("it may have any size")
	}
	if err := p.Drop(); err != nil {
		t.Error(err)
	}
	for _, digest := range []string{"", "..", "../../etc/passwd", strings.Repeat("g", 64), strings.ToUpper(digestOf("x")), digestOf("x") + "00", "/" + digestOf("x")} {
		if _, err := s.ReceiveBinary(digest); err == nil {
			t.Errorf("%q is taken for a digest", digest)
		}
		if lacks, err := s.Lacks(digest); lacks || err == nil && digest != "" {
			t.Errorf("of %q it is said that it lacks it, %t: %v", digest, lacks, err)
		}
	}
	if _, err := OpenBinaryCache(dir, filepath.Join(dir, "none")); err == nil {
		t.Error("a guest agent that is not there was added")
	}
	if all, _ := os.ReadDir(dir); len(all) != 1 {
		t.Errorf("left are %v", all)
	}
}
