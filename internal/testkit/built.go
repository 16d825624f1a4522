package testkit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// commandLine finds, in the comment at the head of a source, the command that builds a
// binary from it: it begins with the name of a compiler and goes on where a line ends in a
// backslash.
var commandLine = regexp.MustCompile(`(?m)^[ */#]*((?:gcc|as) (?:.*\\\n)*.*)$`)

// margin is what a comment has before its text.
var margin = regexp.MustCompile(`\\\n[ */#]*`)

// Built fails the test unless a binary that is committed is what its source gives, by the
// command in the source's comment. Another compiler than the one that made it, gcc 12, and
// another assembler and linker than those beside it, give other bytes: then the source has to compile, and to be the one with this SHA-256,
// which a test that has just compared both prints when it changes.
func Built(t testing.TB, binary, source, sum string) {
	t.Helper()
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(text)
	if got := hex.EncodeToString(digest[:]); got != sum {
		t.Errorf("%s has changed, its SHA-256 is %s: build %s with the command in it, and put that here", source, got, binary)
	}
	found := commandLine.FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s does not say how %s is built", source, binary)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(source)), text, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), programLimit)
	defer cancel()
	build := exec.CommandContext(ctx, "sh", "-c", margin.ReplaceAllString(string(found[1]), " "))
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	got, err := os.ReadFile(filepath.Join(dir, filepath.Base(binary)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) && madeBy() == "12" {
		t.Errorf("%s is not what %s gives: build it with the command in it", binary, source)
	}
}

// madeBy is the version of the compiler that is here.
func madeBy() string {
	out, _ := exec.Command("gcc", "-dumpversion").Output()
	version, _, _ := strings.Cut(strings.TrimSpace(string(out)), ".")
	return version
}
