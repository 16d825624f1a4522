package host

import (
	"testing"
	"time"

	"pagurus/fleet"
)

func TestRising(t *testing.T) {
	got := Rising([]fleet.Changed{{Within: 3, Bytes: 10}, {Within: 1, Bytes: 6}, {Within: 2, Bytes: 4}, {Within: 4, Bytes: 9}})
	want := []int64{5, 5, 9, 9}
	for i, c := range got {
		if c.Within != time.Duration(i+1) || c.Bytes != want[i] {
			t.Errorf("point %d is %+v, want %d", i, c, want[i])
		}
	}
}
