package drive

import (
	"testing"
	"time"
)

func TestTheLongestGapAfterAMomentCounts(t *testing.T) {
	const said = "START\nGAP 100.5 0.4\nGAP 102.25 0.03\nGAP 103 0.2\nGAP 104 0.05\nnoise\nGAP 107 0.9\n"
	from, to := time.Unix(101, 0), time.Unix(106, 0)
	got, err := LongestGap(said, from, to)
	if err != nil || !got.Ended.Equal(time.Unix(103, 0)) || got.Took != 200*time.Millisecond {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "START\nGAP 100.5 0.4\n", "GAP soon 0.1\n"} {
		if got, err := LongestGap(bad, from, to); err == nil {
			t.Errorf("%q says %v", bad, got)
		}
	}
}
