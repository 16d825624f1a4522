package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// TestRemains: what a guest said last outlives the driver until it is told, is bounded in
// size and number, and stays for people afterwards.
func TestRemains(t *testing.T) {
	dir := t.TempDir()
	console := filepath.Join(dir, "console")
	text := strings.Repeat("noise\n", 40000) + strings.Repeat("ä", 500) + "\nlast\n"
	if err := os.WriteFile(console, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	first := &Guests[*Guest[own]]{Kept: Remains{Dir: filepath.Join(dir, "ended")}}
	remember := func(id fleet.GuestID) fleet.Remains {
		f, err := os.Open(console)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := first.Remember(id, f, nil, func(r *fleet.Remains, shown string) {
			if !strings.HasSuffix(shown, "last\n") || len(shown) > remainsBytes {
				t.Errorf("%d bytes of the console explain it", len(shown))
			}
			r.Why = "it had to"
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := remember("j1g0")
	if r.Sentence() != "it had to; its last console line: last" || len(r.Console) != remainsLines || len(r.Log) != 0 {
		t.Errorf("reported: %+v", r)
	}
	if long := r.Console[remainsLines-2]; len(long) > remainsWidth+len("…") || !strings.HasSuffix(long, "ä…") {
		t.Errorf("a long line is %q", long)
	}
	next := &Guests[*Guest[own]]{Kept: first.Kept} // of the next agent
	if got := next.Ending("j1g0"); got == nil || got.Sentence() != r.Sentence() || got.Folder != r.Folder {
		t.Errorf("the next agent knows %+v", got)
	}
	if info, err := os.Stat(filepath.Join(r.Folder, consoleCopy)); err != nil || info.Size() != remainsBytes {
		t.Errorf("kept of the console: %v, %v", info, err)
	}
	next.Wipe = func(fleet.GuestID) error { return nil }
	if err := next.Stop(t.Context(), "j1g0", "no.such.point"); err != nil {
		t.Fatal(err)
	}
	if got := next.Ending("j1g0"); got != nil {
		t.Errorf("after a stop it is told again: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(r.Folder, consoleCopy)); err != nil {
		t.Errorf("after a stop nothing is left for people: %v", err)
	}
	for i := range remainsKept + 3 {
		id := fleet.GuestID(fmt.Sprintf("j2g%d", i))
		at := remember(id).Folder
		then := time.Now().Add(time.Duration(i-100) * time.Minute)
		if err := os.Chtimes(at, then, then); err != nil {
			t.Fatal(err)
		}
	}
	all, err := os.ReadDir(first.Kept.Dir)
	if err != nil || len(all) > remainsKept {
		t.Errorf("%d guests are kept: %v", len(all), err)
	}
	if next.Ending("j2g0") != nil || next.Ending(fleet.GuestID(fmt.Sprintf("j2g%d", remainsKept+2))) == nil {
		t.Error("not the oldest are removed")
	}
}
