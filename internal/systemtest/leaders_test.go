package systemtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// A guest goes back and forth between two hosts, under three controllers. In each move the one that leads is
// killed while a host carries out one of the orders: every order, so every phase of a move that
// has one. Another leads, the move ends, the guest runs where it ended, and the job's result is right.
func TestLongMovesSurviveTheirLeader(t *testing.T) {
	w := newWalk(t, fleet.Container, 1, "--controllers", "3", "--encryption", "none")
	for _, c := range walked {
		w.killLeader(c)
	}
	w.finish()
}

// killLeader makes one move, and kills the controller that leads while the order is carried out.
func (w *walk) killLeader(c walkedOrder) {
	w.t.Helper()
	begun := time.Now()
	from, to := w.at, map[string]string{"host1": "host2", "host2": "host1"}[w.at]
	goOn := filepath.Join(w.dir, "go-"+string(c.verb))
	point := fmt.Sprintf("agent.%s.before=until:%s", c.verb, goOn)
	if c.source {
		w.tell(from, point+","+c.before)
	} else {
		w.tell(to, point)
		w.tell(from, c.before)
	}
	id := fleet.MoveID(w.say(append([]string{"migrate", "--to", to}, w.guests...)...))
	testkit.Until(w.t, untilLimit, fmt.Sprintf("%s has to %s", id, c.verb), func() bool {
		time.Sleep(lookEvery)
		return slices.ContainsFunc(w.move(id).Parts, func(p fleet.Migration) bool {
			o, waits := lifecycle.MigrationOrder(p)
			return waits && o.Verb == c.verb
		})
	})
	leader := w.leader()
	w.say("lab", "kill", leader)
	if err := os.WriteFile(goOn, nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
	var m move
	testkit.Until(w.t, untilLimit, fmt.Sprintf("%s has ended", id), func() bool {
		time.Sleep(lookEvery)
		m = w.move(id)
		return len(m.Parts) > 0 && !slices.ContainsFunc(m.Parts, func(p fleet.Migration) bool { return !p.Phase.Ended() })
	})
	p := m.Parts[0]
	w.t.Logf("%s killed at %-8s %s (%s) %s", leader, c.verb, p.Phase, time.Since(begun).Round(100*time.Millisecond), p.Cause)
	home := p.From
	if p.Phase == fleet.Finished {
		home = p.To
	}
	w.at = string(home)
	w.runs(p.Guest, home)
	if p.Phase == fleet.Lost || c.before == "" && p.Phase != fleet.Finished {
		w.t.Errorf("a move whose leader was killed at %s ended as %s: %s", c.verb, p.Phase, p.Cause)
	}
	w.say("lab", "up")
}

// move gives a move.
func (w *walk) move(id fleet.MoveID) (m move) {
	w.t.Helper()
	var moves []move
	if err := json.Unmarshal([]byte(w.say("moves", "--json")), &moves); err != nil {
		w.t.Fatal(err)
	}
	if i := slices.IndexFunc(moves, func(m move) bool { return m.ID == id }); i >= 0 {
		m = moves[i]
	}
	return m
}

// leader names the controller that leads.
func (w *walk) leader() (name string) {
	w.t.Helper()
	testkit.Until(w.t, untilLimit, "a controller leads", func() bool {
		var all []struct {
			Name  string `json:"name"`
			Leads bool   `json:"leads"`
		}
		if err := json.Unmarshal([]byte(w.say("controller", "ls", "--json")), &all); err != nil {
			w.t.Fatal(err)
		}
		for _, c := range all {
			if c.Leads {
				name = c.Name
			}
		}
		return name != ""
	})
	return name
}
