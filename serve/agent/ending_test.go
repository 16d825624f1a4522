package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// A guest that moves every second is contacted soon after each move.
func TestLinkIsMadeSoonAfterEachMove(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		s, err := r.a.slotOf("j1g0")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r.do(task(fleet.Activate, 1))
			began := time.Now()
			conn, err := rested{opens{}, r.a, s}.Link(t.Context(), "j1g0")
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("the link was made %s after the move", took)
			}
		}
	})
}

// opens is a driver that opens links at once.
type opens struct{ Linker }

func (opens) Link(context.Context, fleet.GuestID) (io.ReadWriteCloser, error) {
	a, b := net.Pipe()
	b.Close()
	return a, nil
}

// End carries the program's last output and replaces Run: the output is not read twice.
func TestEndCarriesTheLastWords(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.do(task(fleet.Start, 1))
		run := task(fleet.Run, 1)
		r.send(run)
		synctest.Wait()
		end := task(fleet.End, 1)
		end.Job.Ending = &fleet.Ending{Grace: time.Minute}
		r.send(end)
		if exit := r.expect(end.Order, fleet.Done).Exit; exit == nil || exit.Code != 143 {
			t.Errorf("exit %+v", exit)
		}
		if n := r.d.count("signal j1 15 1m0s j1g0"); n != 1 {
			t.Errorf("told %d times", n)
		}
		if got := string(r.c.spool["j1stdout"]); got != "saved" {
			t.Errorf("stdout %q", got)
		}
	})
}

// TestKilledAsItStarts: the host is to blame if a guest is killed before it runs, and the guest if it ends by itself or for a limit.
func TestKilledAsItStarts(t *testing.T) {
	for _, c := range []struct {
		remains *fleet.Remains
		host    bool
	}{{nil, false}, {&fleet.Remains{Why: "it switched itself off"}, false}, {&fleet.Remains{OOMKills: 1}, false}, {&fleet.Remains{Killed: true}, true}} {
		for _, verb := range []fleet.Verb{fleet.Start, fleet.Restore, fleet.Activate} {
			in(t, func(t *testing.T, r *rig) {
				r.d.remains = c.remains
				o := task(verb, 1)
				switch verb {
				case fleet.Start:
					r.hook(func(call string) error {
						if call == "setup j1g0" {
							r.d.end("j1g0")
							return errors.New("the link broke")
						}
						return nil
					})
				case fleet.Restore:
					r.vault.parts[partOf(o)] = "memory"
					r.hook(func(call string) error {
						if call == "restore j1g0" {
							return errors.New("it ended")
						}
						return nil
					})
				}
				r.send(o)
				if rep := r.expect(o.Order, fleet.Failed); rep.AtFault != c.host || rep.Remains != c.remains {
					t.Errorf("%s, %+v: %+v", verb, c.remains, rep)
				}
			})
		}
	}
}

// TestProgramOfADeadGuestFailsWithItsEnd: a guest died while no agent was here. The order to
// carry its program may be answered first, and then alone gives the job's failure.
func TestProgramOfADeadGuestFailsWithItsEnd(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.d.remains = &fleet.Remains{Why: "it switched itself off"}
		run := task(fleet.Run, 1)
		r.send(run)
		if rep := r.expect(run.Order, fleet.Failed); !strings.HasSuffix(rep.Cause, "guest is not on this host: it switched itself off") {
			t.Errorf("cause %q", rep.Cause)
		}
	})
}
