package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/decide/desired"
	"pagurus/fleet"
)

// The files of a job of containers reach other machines: hosts there get a file client, whose
// address the server's host knows, and it stays whatever those hosts say of themselves.
func TestFilesReachOtherMachines(t *testing.T) {
	w := newWorld(t, "host1", "host2", "host3")
	source := "nfs server:/data"
	for id, h := range w.s.Hosts {
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.Container: {Live: true, Files: id == "host2", NoFiles: "its kernel has no NFS client"}}
		if id != "host1" {
			h.Facts.Machine = string(id)
		}
		w.s.Hosts[id] = h
	}
	r := submission(3)
	r.Spec.Kind = fleet.Container
	r.Spec.On = []fleet.HostID{"host3"}
	if _, err := w.ask(r); err == nil || !strings.Contains(err.Error(), "host3 has no way to /home/me, which is on another machine: its kernel has no NFS client") {
		t.Errorf("host3 takes it, or says %v", err)
	}
	host3 := w.s.Hosts["host3"]
	host3.Facts.Shared = []fleet.Directory{{Path: "/home", Source: source}}
	w.s.Hosts["host3"] = host3
	r = submission(3)
	r.Spec.Kind, r.Spec.Source, r.Spec.On = fleet.Container, source+"/me", []fleet.HostID{"host1", "host2", "host3"}
	job := w.must(r).Job
	if w.s.Jobs[job].ShareHost != "host1" {
		t.Fatalf("served by %s", w.s.Jobs[job].ShareHost)
	}
	wanted := func(id fleet.HostID) fleet.Network { return desired.Wanted(w.s, id).Networks[0] }
	check := func() {
		t.Helper()
		for _, id := range []fleet.HostID{"host1", "host2", "host3"} {
			n, number := wanted(id), w.s.Hosts[id].Number
			if (n.Mount != nil) != (id != "host1") || n.Mount != nil && n.Mount.Addr != fleet.ClientAddr(number) {
				t.Errorf("%s: %+v", id, n.Mount)
			}
			var clients []fleet.HostID
			for _, e := range n.Endpoints {
				if e.Mount {
					clients = append(clients, e.Host)
				}
			}
			slices.Sort(clients)
			if !slices.Equal(clients, []fleet.HostID{"host2", "host3"}) || !slices.IsSortedFunc(n.Endpoints, func(a, b fleet.Endpoint) int { return a.Addr.Compare(b.Addr) }) {
				t.Errorf("%s: %+v", id, n.Endpoints)
			}
		}
	}
	check()
	lines, err := w.p.Explain(w.s, Subject{Job: job})
	text := strings.Join(lines, "\n")
	for _, want := range []string{"host2 mounts /home/me from host1.", "/home/me is the one that host3 shares with others anyway."} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v: explain lacks %q:\n%s", err, want, text)
		}
	}
	lines, err = w.p.Explain(w.s, Subject{Host: "host3"})
	text = strings.Join(lines, "\n")
	for _, want := range []string{"It shares /home with other hosts that have the same.", "Its containers have only files of its own machine, and what hosts share: its kernel has no NFS client."} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v: explain lacks %q:\n%s", err, want, text)
		}
	}
	w.silent["host1"] = true
	w.now = w.now.Add(time.Minute)
	w.hear()
	lines, err = w.p.Explain(w.s, Subject{Job: job})
	if text = strings.Join(lines, "\n"); err != nil || !strings.Contains(text, "programs that use files wait, and go on when it is back") {
		t.Errorf("%v: explain of a job whose files are away:\n%s", err, text)
	}
	for id, h := range w.s.Hosts { // their agents came back without what they could do before
		h.Facts.Abilities, h.Facts.Shared = nil, nil
		w.s.Hosts[id] = h
	}
	check()
}

// Every host has a number of its own, whichever way it came, and keeps it.
func TestNumbersOfHosts(t *testing.T) {
	w := newWorld(t, "host1", "host2")
	old := w.s.Hosts["host2"]
	old.Number = 0 // of a store of an earlier Pagurus
	w.s.Hosts["host2"] = old
	for _, id := range []fleet.HostID{"host1", "host2", "host2"} {
		w.observe(fleet.Observation{Called: id})
	}
	if a, b := w.s.Hosts["host1"].Number, w.s.Hosts["host2"].Number; a != 1 || b != 3 {
		t.Errorf("%d and %d", a, b)
	}
}
