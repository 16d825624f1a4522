package qemu

import (
	"testing"

	"pagurus/fleet"
)

func TestLoses(t *testing.T) {
	one, two := &fleet.Shape{}, &fleet.Shape{Nodes: make([]fleet.ShapeNode, 2)}
	for _, c := range []struct {
		emulated bool
		version  string
		shape    *fleet.Shape
		want     bool
	}{
		{true, "7.2.22", nil, true}, {true, "8.2.9", one, true}, {true, "?", nil, true},
		{true, "9.0.0", nil, false}, {true, "10.0.2", one, false}, {true, "10.0.2", two, true},
		{false, "7.2.22", nil, false}, {false, "10.0.2", two, false},
	} {
		if got := Loses(c.emulated, c.version, c.shape); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
