package systemtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/testkit"
)

// walkedOrder is an order around which the walk kills an agent.
type walkedOrder struct {
	verb   fleet.Verb
	source bool   // the source's order
	before string // the fault at the source that leads to this order
}

// walked are the orders of a migration, in the walk's order.
var walked = []walkedOrder{
	{verb: fleet.Receive}, {verb: fleet.Copy, source: true}, {verb: fleet.Switch, source: true}, {verb: fleet.Activate},
	{verb: fleet.Retire, source: true},
	{verb: fleet.Revert, source: true, before: "agent.switch.before=error"}, {verb: fleet.Discard, before: "agent.switch.before=error"},
}

// The walk leaves out only the order fetch, which only post-copy has: postcopy.txtar and the
// drivers' contract kill agents then.
func TestWalkHasEveryOrder(t *testing.T) {
	const from, to fleet.HostID = "a", "b"
	orders := 0
	for _, p := range []fleet.Phase{fleet.Preparing, fleet.Waiting, fleet.Copying, fleet.Ready, fleet.Switching, fleet.Activating, fleet.PostCopying,
		fleet.Retiring, fleet.Cancelling, fleet.Reverting, fleet.Discarding, fleet.Finished, fleet.Aborted, fleet.Lost} {
		o, waits := lifecycle.MigrationOrder(fleet.Migration{ID: "m", Phase: p, From: from, To: to})
		if !waits || o.Verb == fleet.Fetch {
			continue
		}
		orders++
		i := slices.IndexFunc(walked, func(c walkedOrder) bool { return c.verb == o.Verb })
		if i < 0 || walked[i].source != (o.Host == from) {
			t.Errorf("%s: the order to %s, at the source: %t, is not walked", p, o.Verb, o.Host == from)
		}
	}
	if orders < len(walked) {
		t.Errorf("the tables have %d orders, and %d are walked", orders, len(walked))
	}
}

// places are where an agent dies around an order: before it, after it, or when it has
// carried it out but not reported, so that it is asked again.
var places = []string{"before=kill", "after=kill", "recorded=kill"}

// A gang of two goes back and forth between two hosts. In each move the agent of one of them
// dies around one of its orders: every order, every place. Then each guest runs where its
// move ended, and the job's result is right. They are containers, which move in a tenth of
// emulated machines' time.
func TestLongGangSurvivesEveryOrder(t *testing.T) { everyWay(t, 2) }

// The same with a guest that moves alone.
func TestLongGuestSurvivesEveryOrder(t *testing.T) { everyWay(t, 1) }

func everyWay(t *testing.T, guests int) {
	w := newWalk(t, fleet.Container, guests)
	for _, c := range walked {
		for _, place := range places {
			w.step(fmt.Sprintf("agent.%s.%s", c.verb, place), c.source, c.before)
		}
	}
	w.finish()
}

// The same with machines: every order, each at one of the places.
func TestLongGangOfMachinesSurvivesEveryOrder(t *testing.T) {
	w := newWalk(t, fleet.VM, 2)
	for i, c := range walked {
		w.step(fmt.Sprintf("agent.%s.%s", c.verb, places[i%len(places)]), c.source, c.before)
	}
	w.finish()
}

// newWalk starts the job for the walk: ranks, each in a guest of its own on one host, that
// exchange numbers until told to stop.
func newWalk(t *testing.T, kind fleet.Kind, guests int, lab ...string) *walk {
	t.Helper()
	alone(t)
	pagurus(t, append([]string{"lab", "up", "--hosts", "2"}, lab...)...)
	w := &walk{t: t, dir: t.TempDir(), at: "host1"}
	for d := w.dir; d != "/tmp"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(witness())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "witness.c"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	w.say("image", "shell", "openmpi", "--", "mpicc", "-O1", "-o", "witness", "witness.c")
	w.run = exec.Command(filepath.Join(bin(t), "pagurus"), "run", "--kind", string(kind), "-n", fmt.Sprint(guests), "--guests", fmt.Sprint(guests), "--mem", "256M", "--on", "host1", "--",
		"./witness", "100000", "8", "1000", "stop")
	w.run.Dir = w.dir
	w.run.Stdout, w.run.Stderr = &w.said, &w.said
	if err := w.run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.run.Process.Kill() // it has ended if all went well
		w.run.Wait()
	})
	w.job = w.only()
	for i := range guests {
		w.guests = append(w.guests, fmt.Sprintf("%sg%d", w.job, i))
	}
	testkit.Until(t, untilLimit, "the job's ranks compute", func() bool { return strings.Contains(w.say("logs", w.job), "START") })
	return w
}

// finish lets the job end; its result must be right.
func (w *walk) finish() {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, "stop"), nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := w.run.Wait(); err != nil || !strings.Contains(w.said.String(), "\nOK") || strings.Contains(w.said.String(), "WRONG") {
		w.t.Errorf("%v: the job said %s", err, w.said.String())
	}
}

// lookEvery is between two queries to a cluster whose guests need the CPUs.
const lookEvery = 200 * time.Millisecond

// walk is the job of a walk.
type walk struct {
	t    *testing.T
	dir  string
	job  string
	at   string    // the host with all guests
	run  *exec.Cmd // the command that started the job
	said bytes.Buffer

	guests []string
}

// say runs a command and returns its output.
func (w *walk) say(args ...string) string {
	w.t.Helper()
	c := exec.Command(filepath.Join(bin(w.t), "pagurus"), args...)
	c.Dir = w.dir
	out, err := c.CombinedOutput()
	if err != nil {
		w.t.Fatalf("pagurus %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// only gives the only job.
func (w *walk) only() (id string) {
	w.t.Helper()
	testkit.Until(w.t, untilLimit, "there is a job", func() bool {
		time.Sleep(lookEvery)
		var jobs []fleet.Job
		if err := json.Unmarshal([]byte(w.say("jobs", "--json")), &jobs); err != nil {
			w.t.Fatal(err)
		}
		for _, j := range jobs {
			if j.State != fleet.JobEnded {
				id = string(j.ID)
			}
		}
		return id != ""
	})
	return id
}

// tell restarts a host's agent with faults.
func (w *walk) tell(host, faults string) {
	w.t.Helper()
	c := exec.Command(filepath.Join(bin(w.t), "pagurus"), "lab", "restart", host)
	c.Env = append(os.Environ(), fault.Environment+"="+faults)
	if out, err := c.CombinedOutput(); err != nil {
		w.t.Fatalf("restart %s: %v\n%s", host, err, out)
	}
	heard := regexp.MustCompile(`(?m)^` + host + ` +up +now `)
	testkit.Until(w.t, untilLimit, host+" is heard", func() bool { return heard.MatchString(w.say("host", "ls")) })
}

// step makes one move with one fault.
func (w *walk) step(point string, source bool, before string) {
	w.t.Helper()
	begun := time.Now()
	from, to := w.at, map[string]string{"host1": "host2", "host2": "host1"}[w.at]
	sick := to
	if source {
		sick = from
		w.tell(from, point+","+before)
	} else {
		w.tell(to, point)
		if before != "" {
			w.tell(from, before)
		}
	}
	m := w.end(fleet.MoveID(w.say(append([]string{"migrate", "--to", to}, w.guests...)...)), sick)
	for _, p := range m.Parts {
		w.t.Logf("%-28s %s (%s) %s", point, p.Phase, time.Since(begun).Round(100*time.Millisecond), p.Cause)
	}
	// An agent that dies during one member's switch leaves the other at the source.
	w.at = from
	for _, p := range m.Parts {
		if p.Phase == fleet.Finished {
			w.at = to
		}
	}
	for _, p := range m.Parts {
		home := p.From
		if p.Phase == fleet.Finished {
			home = p.To
		}
		w.runs(p.Guest, home)
		if string(home) != w.at {
			w.say("migrate", string(p.Guest), "--to", w.at, "--wait")
		}
	}
}

// end waits until a move has ended, while the faulty agent dies and is restarted.
func (w *walk) end(id fleet.MoveID, sick string) move {
	w.t.Helper()
	dies := true
	var m move
	for end := time.Now().Add(untilLimit); ; time.Sleep(lookEvery) {
		if dies && w.dead(sick) {
			w.tell(sick, "")
			dies = false
		}
		var moves []move
		if err := json.Unmarshal([]byte(w.say("moves", "--json")), &moves); err != nil {
			w.t.Fatal(err)
		}
		i := slices.IndexFunc(moves, func(m move) bool { return m.ID == id })
		if i >= 0 {
			m = moves[i]
		}
		if !dies && len(m.Parts) == len(w.guests) && !slices.ContainsFunc(m.Parts, func(p fleet.Migration) bool { return !p.Phase.Ended() }) {
			return m
		}
		if time.Now().After(end) {
			w.t.Fatalf("after %s the agent of %s has died: %t; the move: %s", untilLimit, sick, !dies, w.say("moves", "show", string(id)))
		}
	}
}

// runs waits until a guest runs where it should.
func (w *walk) runs(guest fleet.GuestID, home fleet.HostID) {
	w.t.Helper()
	testkit.Until(w.t, untilLimit, fmt.Sprintf("%s runs on %s", guest, home), func() bool {
		time.Sleep(lookEvery)
		var guests []fleet.Guest
		if err := json.Unmarshal([]byte(w.say("guests", "--json")), &guests); err != nil {
			w.t.Fatal(err)
		}
		return slices.ContainsFunc(guests, func(g fleet.Guest) bool {
			return g.ID == guest && g.Home == home && g.State == fleet.GuestRunning
		})
	})
}

// dead reports whether the host's agent has ended.
func (w *walk) dead(host string) bool {
	var lab struct {
		Parts []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"parts"`
	}
	c := exec.Command(filepath.Join(bin(w.t), "pagurus"), "lab", "status", "--json")
	out, _ := c.Output() // it exits with 1 when a part is down
	if err := json.Unmarshal(out, &lab); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	for _, p := range lab.Parts {
		if p.Name == host {
			return p.PID == 0
		}
	}
	w.t.Fatalf("the lab has no %s: %s", host, out)
	return false
}
