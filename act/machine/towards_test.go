package machine

import "testing"

func TestTowards(t *testing.T) {
	for other, want := range map[string]string{"127.0.0.1:9": "127.0.0.1", "[::1]:9": "::1", "unix:/run/x": "", "nonsense": "", "": ""} {
		if got := Towards(other); got != want {
			t.Errorf("towards %q it is %q, not %q", other, got, want)
		}
	}
}
