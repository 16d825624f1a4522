package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A host that announces another key or port all the time has others change their devices so often a day, and no more; another host, or
// the same one a day later, may.
func TestRekeyed(t *testing.T) {
	r, at := rekeyed{}, time.Unix(1e9, 0)
	says := func(key string, port uint16) fleet.Facts {
		return fleet.Facts{WireGuard: &fleet.WireGuardFacts{WireGuardEnd: fleet.WireGuardEnd{Key: key, Port: port}}, Troubles: []string{"one"}}
	}
	h := fleet.Host{ID: "host1"}
	told := 0
	hear := func(f fleet.Facts) fleet.Facts {
		before := wireGuardEnd(h.Facts)
		said := *f.WireGuard
		h.Facts = r.admitKey(h, f, at)
		if !reflect.DeepEqual(*f.WireGuard, said) {
			t.Fatal("what the host said was changed in place")
		}
		if wireGuardEnd(h.Facts) != before {
			told++
		}
		return h.Facts
	}
	for i := range 1000 {
		at = at.Add(time.Second)
		f := hear(says(fmt.Sprint("key", i%2), uint16(i/2%3)))
		hear(f) // the same again is no change
	}
	if told != 1+mostRekeyings {
		t.Errorf("of 1000 changes others were told %d", told)
	}
	if f := hear(says("another", 7)); len(f.Troubles) != 2 || !strings.Contains(f.Troubles[1], "changed 24 times within a day") || wireGuardEnd(f).Key == "another" {
		t.Errorf("it says %v", f)
	}
	other := fleet.Host{ID: "host2", WireGuard: fleet.WireGuardEnd{Key: "a", Port: 1}}
	if f := r.admitKey(other, says("b", 1), at); wireGuardEnd(f).Key != "b" || len(f.Troubles) != 1 {
		t.Errorf("of another host: %v", f)
	}
	at = at.Add(rekeyingSpan)
	if f := hear(says("another", 7)); wireGuardEnd(f).Key != "another" || len(f.Troubles) != 1 {
		t.Errorf("a day later: %v", f)
	}
	h.Facts = fleet.Facts{} // a restarted controller
	h.WireGuard = fleet.WireGuardEnd{Key: "another", Port: 7}
	many := len(r["host1"])
	if hear(says("another", 7)); len(r["host1"]) != many {
		t.Error("a host that comes back with the same key has changed it")
	}
}
