package placement

import (
	"fmt"
	"strings"

	"pagurus/fleet"
)

// suit is a kind of guest on hosts that run it in a certain way.
type suit struct {
	ask  Ask
	only string // the accelerator; empty: any
	site string // of the hosts; empty: any
	why  string // beginning of the reason
}

// suitsOf returns the ways to meet an ask, best first. If the kind is open, these are
// virtual machines on hosts with hardware virtualization; then the guests of Xen hosts, which run no others; then
// containers, which run at full speed everywhere; then emulated machines, which are many times slower.
func suitsOf(a Ask) []suit {
	if a.Kind != fleet.Auto {
		return a.functions()
	}
	vm, xen, container := a, a, a
	vm.Kind, xen.Kind, container.Kind = fleet.VM, fleet.Xen, fleet.Container
	return []suit{
		{ask: vm, only: fleet.KVM, why: "a vm, since KVM works there; "},
		{ask: xen, why: "a guest of Xen, since that host has Xen, and no host has both KVM and room; "},
		{ask: container, why: "a container, since no host has both KVM and room; "},
		{ask: vm, why: "an emulated vm, since no host has room and either KVM or CRIU; "},
	}
}

func (s suit) suits(h *fleet.Host) bool {
	return (s.only == "" || h.Facts.Abilities[s.ask.Kind].Accelerator == s.only) && (s.site == "" || h.Facts.Site == s.site)
}

// unfitAnyhow says why a host cannot take the guest as any kind. If it can run none that
// its agent knows, it gives all reasons.
func unfitAnyhow(v *Survey, h *fleet.Host, a Ask) string {
	var all string
	for _, t := range fleet.Kinds {
		if _, has := h.Facts.Abilities[t.Kind]; !has && t.Kind != fleet.Usual {
			continue
		}
		a.Kind = t.Kind
		reason := Unfit(v, h, a)
		switch {
		case reason == "":
			return ""
		case all == "":
			all = reason
		case reason != all:
			all += ", and " + reason
		}
	}
	return all
}

// Kinds says which kinds were chosen for guests of open kind, and why, once for each run
// of equal ones.
func Kinds(asked fleet.Kind, guests []fleet.GuestID, chosen []Choice) (notes []string) {
	if asked != fleet.Auto {
		return nil
	}
	why := func(i int) string {
		kind, _, _ := strings.Cut(chosen[i].Reason, "; ")
		return kind
	}
	for first := 0; first < len(chosen); {
		last := first
		for last+1 < len(chosen) && why(last+1) == why(first) {
			last++
		}
		who := fmt.Sprintf("guest %s is", guests[first])
		if last > first {
			who = fmt.Sprintf("guests %s to %s are each", guests[first], guests[last])
		}
		notes = append(notes, who+" "+why(first))
		first = last + 1
	}
	return notes
}
