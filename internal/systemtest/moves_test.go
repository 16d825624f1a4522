package systemtest

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pagurus/fleet"
)

// move is a move of one guest in `pagurus move ls --json`.
type move struct {
	ID    fleet.MoveID      `json:"id"`
	Parts []fleet.Migration `json:"parts"`
}

// phase waits until the move whose ID is in a file is in one of the phases, and fails at once
// if it has ended otherwise:
//
//	phase FILE preparing copying
func phase(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: phase FILE PHASE...")
	}
	awaitPhase(ts, args[0], args[1:])
}

// ended waits until the move whose ID is in a file has ended, and its guest runs at the target
// after a finished move, or at the source after an aborted one.
//
//	ended FILE
func ended(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ended FILE")
	}
	part := awaitPhase(ts, args[0], []string{string(fleet.Finished), string(fleet.Aborted)})
	home := part.To
	if part.Phase == fleet.Aborted {
		home = part.From
	}
	ts.Logf("%s of %s is %s: %s", part.Move, part.Guest, part.Phase, part.Cause)
	var last []fleet.Guest
	for end := time.Now().Add(untilLimit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		last = nil
		listed(ts, "guests", &last)
		if slices.ContainsFunc(last, func(g fleet.Guest) bool {
			return g.ID == part.Guest && g.Home == home && g.State == fleet.GuestRunning
		}) {
			return
		}
	}
	ts.Fatalf("%s does not run on %s: %+v", part.Guest, home, last)
}

// slow makes the links to hosts of the lab as slow as a bad wireless link, until the script
// ends:
//
//	slow HOST...
func slow(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: slow HOST...")
	}
	for _, host := range args {
		link := "pglab" + strings.TrimPrefix(host, "host")
		ts.Check(ts.Exec("tc", "qdisc", "replace", "dev", link, "root", "tbf", "rate", "8mbit", "burst", "32kb", "latency", "200ms"))
		ts.Defer(func() {
			if err := ts.Exec("tc", "qdisc", "del", "dev", link, "root"); err != nil {
				ts.Logf("%s stays slow: %v", host, err)
			}
		})
	}
}

func awaitPhase(ts *testscript.TestScript, file string, phases []string) fleet.Migration {
	id := fleet.MoveID(strings.TrimSpace(ts.ReadFile(file)))
	var last fleet.Migration
	for end := time.Now().Add(untilLimit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var moves []move
		listed(ts, "moves", &moves)
		i := slices.IndexFunc(moves, func(m move) bool { return m.ID == id })
		if i < 0 || len(moves[i].Parts) != 1 {
			ts.Fatalf("no move %q of one guest among %+v", id, moves)
		}
		last = moves[i].Parts[0]
		if slices.Contains(phases, string(last.Phase)) {
			return last
		}
		if last.Phase.Ended() {
			break
		}
	}
	ts.Fatalf("%s of %s is %s (%s), not %s; it entered %+v", id, last.Guest, last.Phase, last.Cause, strings.Join(phases, " or "), last.Entered)
	return last
}

// listed reads a table of the cluster.
func listed(ts *testscript.TestScript, table string, into any) {
	out, err := exec.Command(ts.Getenv("PAGURUS"), table, "--json").Output()
	ts.Check(err)
	ts.Check(json.Unmarshal(out, into))
}
