package machine

import "testing"

func TestRoom(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:          86016 kB\nMemFree:            5000 kB\nMemAvailable:      26624 kB\nSwapTotal:        131068 kB\nSwapFree:         131000 kB\n": (26624 + 131000) << 10,
		"MemAvailable:      26624 kB\nHugePages_Total:       0\n":    26624 << 10,
		"MemTotal:          86016 kB\nSwapFree:         131000 kB\n": -1,
		"MemAvailable:      many kB\n":                               -1,
		"":                                                           -1,
	} {
		if got, ok := room(text); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, ok, want)
		}
	}
	if here, err := Room(); err != nil || here <= 0 {
		t.Errorf("here: %d, %v", here, err)
	}
}
