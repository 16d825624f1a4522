package fleet

import (
	"encoding/json"
	"fmt"
	"testing"
)

// A virtual machine's port has the JSON form from before there were other kinds.
func TestPortNamesOnlyOtherKinds(t *testing.T) {
	for text, p := range map[string]Port{
		`{"guest":"j1g0","index":0,"mac":"02:70:67:00:01:01"}`:                    {Guest: "j1g0", MAC: Subnet(1).GuestMAC(0)},
		`{"guest":"j1g1","index":1,"mac":"02:70:67:00:01:02","kind":"container"}`: {Guest: "j1g1", Index: 1, MAC: Subnet(1).GuestMAC(1), Kind: Container},
	} {
		b, err := json.Marshal(p)
		if err != nil || string(b) != text {
			t.Errorf("%+v is %s, %v", p, b, err)
		}
		var back Port
		if err := json.Unmarshal([]byte(text), &back); err != nil || back != p {
			t.Errorf("%s is %+v, %v", text, back, err)
		}
	}
}

// All links have distinct names that fit into the kernel's 15 bytes.
func TestLinksHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []Subnet{0, 1, 300, MaxSubnet} {
		for what, name := range map[string]string{"bridge": s.BridgeName(), "tunnel": s.TunnelName(), "share": s.ShareName(), "server": s.SharePeerName()} {
			add(t, seen, fmt.Sprint(what, s), name)
		}
		for _, i := range []int{0, 1, 10, MaxGuestsPerJob - 1} {
			for what, name := range map[string]string{"port": s.TapName(i), "container": s.PortPeerName(i), "queue": s.PortQueueName(i)} {
				add(t, seen, fmt.Sprint(what, s, i), name)
			}
		}
	}
}

func add(t *testing.T, seen map[string]string, what, name string) {
	t.Helper()
	if other, ok := seen[name]; ok || len(name) > 15 {
		t.Errorf("%s is called %s, as is %q", what, name, other)
	}
	seen[name] = what
}

// TestFilterOrder: frames for a guest that has moved away are forwarded before a queue
// can hold them.
func TestFilterOrder(t *testing.T) {
	if ForwardPriority >= QueuePriority {
		t.Errorf("the filter that forwards has priority %d, the queue's has %d", ForwardPriority, QueuePriority)
	}
}

// A network that comes again has the same addresses, and nothing else of the first.
func TestSubnetAgain(t *testing.T) {
	seen := map[int]bool{}
	for _, first := range []Subnet{0, 7, MaxSubnet} {
		for s, n := first, 0; n < 64; s, n = s.Again(), n+1 {
			if s.GuestAddr(3) != first.GuestAddr(3) || s.GuestMAC(3) != first.GuestMAC(3) || s.ShareAddr() != first.ShareAddr() || s.ShareMAC() != first.ShareMAC() {
				t.Fatalf("%d has not the addresses of %d", s, first)
			}
			if seen[s.VNI()] || s.VNI() >= 1<<24 || s > MostSubnet || len(s.TapName(249)) > 15 {
				t.Fatalf("%d has VNI %#x and the link %s", s, s.VNI(), s.TapName(249))
			}
			seen[s.VNI()] = true
		}
	}
}
