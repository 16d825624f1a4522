package main

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// starts launches a script and waits until it has printed that it is up.
func starts(t *testing.T, m *member, id, script string) {
	t.Helper()
	if err := m.Launch(t.Context(), fleet.Program{ID: id, Args: []string{"sh", "-c", script}, Dir: "/"}); err != nil {
		t.Fatal(err)
	}
	for got := ""; !strings.Contains(got, "up\n"); {
		data, eof, err := m.Read(limited(t), id, fleet.Stdout, 0)
		if err != nil || eof {
			t.Fatalf("%q %v", data, err)
		}
		got = string(data)
	}
}

const waits = `; echo up; while :; do sleep 0.02; done`

// A program that needs longer to save than a launcher allows has that time, and its output
// then is read.
func TestEndLeavesTimeToSave(t *testing.T) {
	m := enlisted(t)
	starts(t, m, "j1", `trap 'sleep 2.5; echo saved; exit 8' TERM`+waits)
	for range 2 { // as after an agent's restart
		if err := m.Signal(t.Context(), "j1", fleet.Signal{ID: "end", Number: fleet.Terminate, Ends: true, Grace: 20 * time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	out, _, exit := finish(t, m, "j1")
	if exit.Code != 8 || strings.Count(out, "saved") != 1 {
		t.Errorf("%q, %+v", out, exit)
	}
	if err := m.Signal(t.Context(), "j1", fleet.Signal{ID: "end", Number: fleet.Terminate, Ends: true}); err != nil {
		t.Errorf("one that has ended: %v", err)
	}
	if err := m.Signal(t.Context(), "j1", fleet.Signal{ID: "a", Number: 10}); err == nil {
		t.Error("one that has ended was sent a signal")
	}
}

// A program that ignores signals is killed when its grace is over, or a later, shorter one.
func TestEndKillsAfterTheGrace(t *testing.T) {
	m := enlisted(t)
	starts(t, m, "j1", `trap '' TERM`+waits)
	for _, grace := range []time.Duration{time.Hour, 500 * time.Millisecond, time.Minute} {
		if err := m.Signal(t.Context(), "j1", fleet.Signal{ID: "end", Number: fleet.Terminate, Ends: true, Grace: grace}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, exit := finish(t, m, "j1"); exit.Signal != "SIGKILL" {
		t.Errorf("%+v", exit)
	}
}

// The same signal is delivered once, another one again.
func TestSignalComesOnce(t *testing.T) {
	m := enlisted(t)
	starts(t, m, "j1", `trap 'echo one' USR1; trap 'echo two; exit 0' USR2`+waits)
	for _, id := range []string{"a", "a", "b"} {
		if err := m.Signal(t.Context(), "j1", fleet.Signal{ID: id, Number: 10}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // two at the same time would merge
	}
	if err := m.Signal(t.Context(), "j1", fleet.Signal{ID: "c", Number: 12}); err != nil {
		t.Fatal(err)
	}
	if out, _, _ := finish(t, m, "j1"); strings.Count(out, "one") != 2 || strings.Count(out, "two") != 1 {
		t.Errorf("%q", out)
	}
}

func TestLaunchersAreSpared(t *testing.T) {
	for _, name := range []string{"mpirun", "mpiexec.hydra", "prterun", "prted", "orted", "hydra_pmi_proxy", "rsh", "mpirun.openmpi"} {
		if !launches(name) {
			t.Errorf("%s would be sent signals that are for its ranks", name)
		}
	}
	if launches("a.out") || launches("sh") {
		t.Error("a rank is taken for a launcher")
	}
}
