package roles

import (
	"strings"
	"testing"
	"time"
)

func TestSliceFlag(t *testing.T) {
	var s Slice
	for text, want := range map[string]Slice{"adaptive": {Adaptive: true}, "30ms": {Length: 30 * time.Millisecond}, "0": {}} {
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
		back := s.String()
		var again Slice
		if err := again.Set(back); err != nil || again != want {
			t.Errorf("%q is written as %q: %+v, %v", text, back, again, err)
		}
	}
	if err := s.Set("adaptively"); err == nil || !strings.Contains(err.Error(), `"adaptively" is not a duration`) || !strings.HasSuffix(err.Error(), "or adaptive") {
		t.Errorf("%v", err)
	}
}
