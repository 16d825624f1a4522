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

// commandLine finds the build command in the comment at the head of a source: it begins with
// the name of a compiler and continues where a line ends in a backslash.
var commandLine = regexp.MustCompile(`(?m)^[ */#]*((?:gcc|as) (?:.*\\\n)*.*)$`)

// margin is the beginning of a comment's line before its text.
var margin = regexp.MustCompile(`\\\n[ */#]*`)

// Built fails the test unless a committed binary equals the result of its source, by the
// command in the source's comment. A compiler other than gcc 12, or another assembler or
// linker, gives other bytes. Then the source must compile and must have the SHA-256 sum. A
// test that has compared the bytes prints the new sum when it changes.
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
	headers, _ := filepath.Glob(filepath.Join(filepath.Dir(source), "*.h"))
	for _, h := range headers {
		text, err := os.ReadFile(h)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(h)), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
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

// madeBy is the version of the installed compiler.
func madeBy() string {
	out, _ := exec.Command("gcc", "-dumpversion").Output()
	version, _, _ := strings.Cut(strings.TrimSpace(string(out)), ".")
	return version
}
