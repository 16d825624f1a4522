package systemtest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"

	"pagurus/internal/testkit"
)

// sniffers are the captures under way, by the script's folder.
var sniffers sync.Map

// capture looks at all that passes between the lab's hosts, for a word:
//
//	capture begin WORD
//	capture end FILE
//
// The file then says how many frames had the word, and how many there were.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture begin WORD, or capture end FILE")
	}
	work := ts.Getenv("WORK")
	if args[0] == "begin" {
		s, err := testkit.Sniff(args[1])
		ts.Check(err)
		sniffers.Store(work, s)
		return
	}
	s, under := sniffers.LoadAndDelete(work)
	if !under {
		ts.Fatalf("there is no capture to end")
	}
	seen, err := s.(*testkit.Sniffer).End()
	ts.Check(err)
	said := fmt.Sprintf("%d clear frames of %d with %d MiB, lost %d\n", seen.Clear, seen.Frames, seen.Bytes>>20, seen.Lost)
	ts.Logf("%s: %s", args[1], said)
	ts.Check(os.WriteFile(filepath.Join(work, args[1]), []byte(said), 0o644))
}
