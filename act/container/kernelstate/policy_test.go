package kernelstate

import (
	"os"
	"strings"
	"testing"
)

// TestPolicies: set_mempolicy's arguments follow from the policy that the kernel prints.
func TestPolicies(t *testing.T) {
	for line, want := range map[string]struct {
		policy
		mode  uint64
		nodes uint64
	}{
		"560fab13b000 bind:0 file=/bin/x mapped=2":            {policy{"bind", "0"}, 2, 1},
		"560fab13b000 bind=static:1-3,5 file=/bin/x":          {policy{"bind=static", "1-3,5"}, 2 | 1<<15, 0b101110},
		"560fab13b000 bind=static|balancing:0 file=/b":        {policy{"bind=static|balancing", "0"}, 2 | 1<<15 | 1<<13, 1},
		"560fab13b000 prefer (many):0-1 file=/bin/x mapped=2": {policy{"prefer (many)", "0-1"}, 5, 3},
		"560fab13b000 prefer:63":                              {policy{"prefer", "63"}, 1, 1 << 63},
		"560fab13b000 weighted interleave:0-1 file=/x":        {policy{"weighted interleave", "0-1"}, 6, 3},
		"560fab13b000 interleave=relative:0-1 file=/x":        {policy{"interleave=relative", "0-1"}, 3 | 1<<14, 3},
		"560fab13b000 local file=/x":                          {policy{"local", ""}, 4, 0},
	} {
		p := parsePolicy(line)
		mode, nodes, err := p.numbers()
		if p != want.policy || mode != want.mode || nodes[0] != want.nodes || err != nil {
			t.Errorf("%s: %+v is mode %x of nodes %x: %v", line, p, mode, nodes[0], err)
		}
	}
	if p := parsePolicy("560fab13b000 default file=/bin/x mapped=2"); p != (policy{}) {
		t.Errorf("the kernel's own policy is %+v", p)
	}
	if _, _, err := (policy{"unheard", "0"}).numbers(); err == nil {
		t.Error("a policy that nobody knows has a number")
	}
}

// TestFewerNodes: a policy for nodes that this host lacks is not set, and that is reported.
func TestFewerNodes(t *testing.T) {
	if _, err := os.Stat("/sys/devices/system/node/online"); err != nil {
		t.Skip("this kernel has no nodes")
	}
	for nodes, calls := range map[string]int{"0": 1, "0,900": 1, "900": 0} {
		var c Container
		a := attributesOf{Process: 5, Inside: 7, Memory: &policy{"bind", nodes}}
		if err := a.remember(1, &c); err != nil {
			t.Fatal(err)
		}
		said := strings.Join(c.rest.Said, "\n")
		if len(c.rest.Calls) != calls || (said == "") != (nodes == "0") {
			t.Errorf("nodes %s: %+v", nodes, c.rest)
		}
	}
}
