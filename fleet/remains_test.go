package fleet

import (
	"slices"
	"testing"
)

// TestLimits: a guest's limits are told if it has reached them, with what to do.
func TestLimits(t *testing.T) {
	const memory = "the kernel killed 2 processes of the guest because its memory was used up: give guests more with `run --mem`"
	const tasks = "the guest reached its limit of 4096 processes and threads, so that another could not start: have fewer in each guest, with more `run --guests`"
	for _, c := range []struct {
		r    Remains
		want []string
	}{
		{Remains{MaxTasks: 4096}, nil},
		{Remains{OOMKills: 2, MaxTasks: 4096}, []string{memory}},
		{Remains{Refused: 7, MaxTasks: 4096}, []string{tasks}},
		{Remains{OOMKills: 2, Refused: 7, MaxTasks: 4096}, []string{memory, tasks}},
	} {
		if got := c.r.Limits(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.r, got, c.want)
		}
	}
}
