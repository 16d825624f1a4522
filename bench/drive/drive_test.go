package drive_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/bench/drive"
)

func TestType(t *testing.T) {
	p := drive.Pagurus{Program: "sh", Dir: t.TempDir()}
	if out, err := p.Type(t.Context(), "-c", "pwd; echo note >&2"); err != nil || out != p.Dir {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := p.Type(t.Context(), "-c", "echo half; echo why >&2; exit 3"); out != "" || err == nil || !strings.Contains(err.Error(), "half\nwhy") {
		t.Errorf("%q, %v", out, err)
	}
	// It is told to end, and may end what it has begun.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := p.Type(ctx, "-c", "trap 'echo cleared >cleared; exit 130' INT; while :; do sleep 0.05; done")
	if _, e := os.Stat(filepath.Join(p.Dir, "cleared")); err == nil || e != nil {
		t.Errorf("%v, %v", err, e)
	}
}

func TestDialogue(t *testing.T) {
	p := drive.Pagurus{Program: "sh", Dir: t.TempDir()}
	talk, err := p.Dialogue(t.Context(), "-c", "while read -r line; do echo \"$line too\"; done; echo why >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(talk)
	for _, said := range []string{"one", "two"} {
		if _, err := io.WriteString(talk, said+"\n"); err != nil || !lines.Scan() || lines.Text() != said+" too" {
			t.Fatalf("%q, %v", lines.Text(), err)
		}
	}
	if err := talk.End(); err == nil || !strings.Contains(err.Error(), "why") {
		t.Error(err)
	}
	// It is told to end, and answers no more.
	ctx, cancel := context.WithCancel(t.Context())
	talk, err = p.Dialogue(ctx, "-c", "trap 'exit 130' INT; while :; do sleep 0.05; done")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, cancel)
	if err := talk.End(); err == nil {
		t.Error("it ended well")
	}
}

// What commands cost is counted while they run and after, a command once.
func TestWhatCommandsCost(t *testing.T) {
	const spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; "
	p := drive.Pagurus{Program: "sh", Dir: t.TempDir(), Meter: &drive.Meter{}}
	least := 20 * time.Millisecond // of what takes some ten times as long
	more := func(before time.Duration) bool {
		other := (&drive.Meter{}).Used() // the program's own is in both
		return p.Meter.Used()-other-before > least
	}
	if more(0) {
		t.Error("nothing was typed yet, and has cost something")
	}
	talk, err := p.Dialogue(t.Context(), "-c", spin+"echo spun; read line; exit 0")
	if err != nil {
		t.Fatal(err)
	}
	if lines := bufio.NewScanner(talk); !lines.Scan() || !more(0) {
		t.Error("a command that runs is not counted")
	}
	if err := talk.End(); err != nil {
		t.Fatal(err)
	}
	sofar := p.Meter.Used() - (*drive.Meter)(nil).Used()
	if !more(0) || more(sofar) {
		t.Error("a command that has ended is not counted once")
	}
	if _, err := p.Type(t.Context(), "-c", spin+"exit 3"); err == nil || !more(sofar) {
		t.Error("a command that has failed is not counted")
	}
}

func TestPause(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := drive.Pause(ctx, time.Hour); !errors.Is(err, why) {
		t.Error(err)
	}
	if err := drive.Pause(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
}
