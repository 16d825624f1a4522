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

// A slice needs a kernel that has them, or a Xen host, whatever its first domain's kernel. Without one nothing is asked of the kernel.
func TestSliceNeedsKernelOrXen(t *testing.T) {
	without, with := func() string { return "it needs Linux 6.12" }, func() string { return "" }
	for _, c := range []struct {
		slice   Slice
		onXen   bool
		missing func() string
		refused bool
	}{
		{Slice{Length: 30 * time.Millisecond}, false, without, true},
		{Slice{Adaptive: true}, false, without, true},
		{Slice{Adaptive: true}, false, with, false},
		{Slice{Length: 30 * time.Millisecond}, true, without, false},
		{Slice{Adaptive: true}, true, without, false},
		{Slice{}, false, without, false},
	} {
		err := c.slice.refused(c.onXen, c.missing)
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "--slice has no effect here: it needs Linux 6.12") {
			t.Errorf("%s, on Xen %v: %v", &c.slice, c.onXen, err)
		}
	}
}
