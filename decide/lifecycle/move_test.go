package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// gangOf makes members in the given phases.
func gangOf(phases ...fleet.Phase) []fleet.Migration {
	var out []fleet.Migration
	for i, p := range phases {
		out = append(out, fleet.Migration{ID: fleet.MigrationID(fmt.Sprintf("m1.g%d", i)), Move: "m1", Guest: fleet.GuestID(fmt.Sprintf("g%d", i)),
			From: "source", To: "target", Gen: 1, Phase: p, Since: t0})
	}
	return out
}

func phasesOf(members []fleet.Migration) string {
	var out []string
	for _, m := range members {
		out = append(out, string(m.Phase))
	}
	return strings.Join(out, " ")
}

func TestWhoseTurnItIsToCopy(t *testing.T) {
	for _, c := range []struct {
		before string
		left   []int64
		after  string // empty: no copy begins
	}{
		{"waiting", []int64{100}, "copying"},
		{"waiting", []int64{0}, "copying"},
		{"waiting waiting waiting", []int64{100, 100, 100}, "copying copying copying"},
		{"waiting waiting waiting", []int64{100, 40, 85}, "copying waiting copying"},
		{"waiting preparing", []int64{100, 10}, ""},
		{"copying waiting", []int64{100, 40}, ""},
		{"copying waiting", []int64{50, 40}, "copying copying"},
		{"copying waiting waiting", []int64{30, 40, 10}, "copying copying waiting"},
		{"copying waiting", []int64{0, 40}, "copying copying"}, // in its second round
		{"ready waiting", []int64{0, 40}, "ready copying"},
		{"ready copying waiting", []int64{0, 100, 40}, ""},
		{"cancelling waiting", []int64{100, 1}, "cancelling copying"},
		{"copying copying", []int64{100, 1}, ""},
	} {
		var phases []fleet.Phase
		for _, p := range strings.Fields(c.before) {
			phases = append(phases, fleet.Phase(p))
		}
		ms := gangOf(phases...)
		out, began := Start(ms, func(m fleet.Migration) int64 { return c.left[slices.Index(phasesIDs(ms), m.ID)] }, t0)
		if want := c.after; began != (want != "") || (began && phasesOf(out) != want) {
			t.Errorf("%s with %v left: %s", c.before, c.left, phasesOf(out))
		}
		if phasesOf(ms) != c.before {
			t.Errorf("%s was changed in place", c.before)
		}
	}
}

func phasesIDs(ms []fleet.Migration) []fleet.MigrationID {
	var out []fleet.MigrationID
	for _, m := range ms {
		out = append(out, m.ID)
	}
	return out
}

func TestDeadlines(t *testing.T) {
	for _, c := range []struct {
		name     string
		deadline time.Duration
		at       time.Duration
		before   []fleet.Phase
		after    string // empty: nothing changes
		cause    string
	}{
		{"too early", time.Minute, 59 * time.Second, []fleet.Phase{fleet.Copying}, "", ""},
		{"one guest", time.Minute, time.Minute, []fleet.Phase{fleet.Copying}, "cancelling", "it was not ready within the deadline of 1m0s"},
		{"no guest is ready", time.Minute, time.Minute, []fleet.Phase{fleet.Copying, fleet.Preparing, fleet.Waiting}, "cancelling discarding discarding", "it was not ready within the deadline of 1m0s"},
		{"who goes without whom", time.Minute, time.Minute, []fleet.Phase{fleet.Ready, fleet.Copying, fleet.Ready, fleet.Waiting}, "switching cancelling switching discarding", "it was not ready within the deadline of 1m0s, and the others went without it"},
		{"over the point of no return", time.Minute, time.Hour, []fleet.Phase{fleet.Switching, fleet.Activating}, "", ""},
		{"left behind before", time.Minute, time.Hour, []fleet.Phase{fleet.Switching, fleet.Cancelling}, "", ""},
		{"no deadline", 0, 24 * time.Hour, []fleet.Phase{fleet.Copying, fleet.Copying}, "", ""},
		{"ready has a time limit", 0, ReadyLimit, []fleet.Phase{fleet.Ready, fleet.Copying}, "switching cancelling", "it was not ready 5m0s after the first of its move was, and the others went without it"},
		{"ready waits for some time", 0, ReadyLimit - time.Second, []fleet.Phase{fleet.Ready, fleet.Copying}, "", ""},
	} {
		v := fleet.Move{ID: "m1", Begun: t0, Limits: fleet.Limits{Deadline: c.deadline}}
		ms := gangOf(c.before...)
		out, expired := Expire(v, ms, t0.Add(c.at))
		if expired != (c.after != "") || (expired && phasesOf(out) != c.after) {
			t.Errorf("%s: %s", c.name, phasesOf(out))
		}
		for _, m := range out {
			if (m.Phase == fleet.Cancelling || m.Phase == fleet.Discarding) && expired && m.Cause != c.cause {
				t.Errorf("%s: because %q", c.name, m.Cause)
			}
		}
	}
}

// Gangs of three and four take random paths, where gangs of two take all. Every pair of
// members keeps the gang's rule.
func TestLargerGangsAtRandom(t *testing.T) {
	ended := 0
	rapid.Check(t, func(r *rapid.T) {
		mode := rapid.SampledFrom(modes).Draw(r, "mode")
		n := make([]member, rapid.IntRange(3, 4).Draw(r, "members"))
		for i := range n {
			n[i] = newMember(mode)
		}
		for range 200 {
			ms := make([]fleet.Migration, len(n))
			for i := range n {
				n[i].sound(t)
				ms[i] = n[i].migration(i)
				for j := range i {
					pairwise(t, n[i], n[j])
				}
			}
			ways := others(ms)
			pick := rapid.IntRange(-len(ways), len(n)*4).Draw(r, "way") // mostly answers
			if pick < 0 {
				for i := range n {
					n[i] = n[i].after(ways[-pick-1][i])
				}
				continue
			}
			i := pick % len(n)
			order, waits := MigrationOrder(ms[i])
			if !waits {
				continue
			}
			p := rapid.SampledFrom(plays(n[i], order, false)).Draw(r, "play")
			out, _, err := Gang(ms, fleet.Report{Order: order, Outcome: p.how})
			if err != nil {
				t.Fatal(err)
			}
			for k := range n {
				n[k] = n[k].after(out[k])
			}
			n[i].world = p.world
		}
		if !slices.ContainsFunc(n, func(m member) bool { return !m.phase.Ended() }) {
			ended++
		}
	})
	if ended == 0 {
		t.Error("no gang came to its end")
	}
}

// pairwise is together for two members of a larger gang. Both may be ready while a third
// is not.
func pairwise(t *testing.T, a, b member) {
	t.Helper()
	if a.phase != fleet.Ready || b.phase != fleet.Ready {
		together(t, a, b)
	}
}
