package container_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// TestScratchMemoryIsNotSent moves a program that has 100 MiB that it does not need at its cheap moments, and says so or not. What it
// needs is whole afterwards.
func TestScratchMemoryIsNotSent(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	source, err := os.ReadFile("../libpagurus/testdata/scratch.c")
	if err != nil {
		t.Fatal(err)
	}
	if o := j.do(0, time.Minute, sh("cat >s.c && gcc -O1 -Wall -Werror -o scratch s.c -lpagurus"), string(source)); o.exit.Code != 0 {
		t.Fatalf("compile: %+v", o)
	}
	const scratch, pages = 100 << 20, 100 << 20 / 4096
	sent := map[string]int64{}
	for n, how := range []string{"without", "with"} {
		for _, name := range []string{"ready", "go"} {
			_ = os.Remove(filepath.Join(j.files, name))
		}
		var o outcome
		wait := testkit.Meanwhile(t, func() {
			o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./scratch", how}}, "")
		})
		until(t, func() bool { return j.has("ready") })
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := j.inside[0].Await(ctx, fleet.Awaited{For: how}); err != nil {
			t.Fatal(err)
		}
		for known := uint64(0); how == "with"; {
			said, err := j.inside[0].Said(ctx, known)
			if err != nil {
				t.Fatalf("%+v, %v", said, err)
			}
			if known = said.Version; said.Marks.For == how && said.Marks.Held == 0 && said.Marks.Scratch > scratch-2*4096 {
				break
			}
		}
		sent[how] = j.move(0, 2*n).SentBytes // by pre-copy
		j.write("go", "")
		wait()
		full := pages
		if how == "with" {
			full = 1 // the first page has what malloc notes before the memory, so it is kept
		}
		if want := fmt.Sprintf("code 0, wrong 0, full %d\n", full); o.stdout != want {
			t.Errorf("%s: %+v, want %q", how, o, want)
		}
	}
	t.Logf("without scratch memory %d MiB were sent, with it %d MiB", sent["without"]>>20, sent["with"]>>20)
	if sent["without"] < scratch || sent["with"] > sent["without"]-scratch*9/10 {
		t.Errorf("sent %v", sent)
	}
}
