package controller

import (
	"testing"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// A request for isolated CPUs is stored, and the host's agent gets it.
func TestIsolatedCPUsAreWanted(t *testing.T) {
	r := newRig(t)
	isolate := func(q fleet.IsolationRequest) error {
		_, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Isolate, Host: "host1", Isolation: &q})
		return err
	}
	a := r.attach("host1")
	if err := isolate(fleet.IsolationRequest{On: true, CPUs: fleet.CPUSet{0, 1, 2}}); err == nil {
		t.Error("all cores were taken")
	}
	if err := isolate(fleet.IsolationRequest{On: true}); err != nil {
		t.Fatal(err)
	}
	told := a.hears("which CPUs are to be isolated", func(d wire.Down) bool { return d.Wanted != nil && d.Wanted.IsolatedCPUs.String() == "1-2" })
	if err := isolate(fleet.IsolationRequest{}); err != nil {
		t.Fatal(err)
	}
	a.hears("that none are", func(d wire.Down) bool {
		return d.Wanted != nil && len(d.Wanted.IsolatedCPUs) == 0 && d.Wanted.Revision > told.Wanted.Revision
	})
}
