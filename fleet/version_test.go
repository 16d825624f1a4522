package fleet

import (
	"strings"
	"testing"
)

func TestApart(t *testing.T) {
	for _, c := range []struct {
		agent, controller int
		upgrade           string // empty: they work together
	}{
		{0, 0, ""}, {0, 1, ""}, {1, 0, ""}, {7, 7, ""}, {7, 8, ""}, {8, 7, ""},
		{0, 2, "the agent"}, {2, 0, "the controller"}, {5, 9, "the agent"}, {9, 5, "the controller"},
	} {
		a, b := Speaker{"the agent", c.agent}, Speaker{"the controller", c.controller}
		says := Apart(a, b)
		if (says == "") != (c.upgrade == "") || !strings.HasSuffix(says, c.upgrade) || Together(c.agent, c.controller) != (says == "") {
			t.Errorf("agent %d, controller %d: %q does not end with %q", c.agent, c.controller, says, c.upgrade)
		}
	}
}

func TestBehind(t *testing.T) {
	for _, c := range []struct {
		agent, controller int
		upgrade           string
	}{{1, 1, ""}, {1, 2, "upgrade the agent before"}, {2, 1, "upgrade the controller before"}, {1, 3, ""}} {
		says := Behind(Speaker{"the agent", c.agent}, Speaker{"the controller", c.controller})
		if (says == "") != (c.upgrade == "") || !strings.Contains(says, c.upgrade) {
			t.Errorf("agent %d, controller %d: %q does not say %q", c.agent, c.controller, says, c.upgrade)
		}
	}
}
