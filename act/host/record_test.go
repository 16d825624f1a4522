package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// TestLoadRecord: what a newer agent left is either understood or left alone, and never takes
// itself for damaged.
func TestLoadRecord(t *testing.T) {
	type record struct {
		Recorded
		Guest fleet.GuestID `json:"guest"`
	}
	path := filepath.Join(t.TempDir(), "guest.json")
	var got record
	if err := LoadRecord(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
	if err := note.Replace(path, record{ByUs(), "j1g0"}); err != nil {
		t.Fatal(err)
	}
	if err := LoadRecord(path, &got); err != nil || got.Guest != "j1g0" || got.Protocol != fleet.Protocol() {
		t.Errorf("our own: %+v, %v", got, err)
	}
	for _, c := range []struct {
		name, text   string
		newer, reads bool
	}{
		{"from before there were numbers", `{"guest":"j1g0"}`, false, true},
		{"one newer, with a field more", fmt.Sprintf(`{"protocol":%d,"guest":"j1g0","colour":1}`, fleet.Protocol()+1), false, true},
		{"one newer, with another field", fmt.Sprintf(`{"protocol":%d,"guest":{"name":"j1g0"}}`, fleet.Protocol()+1), true, false},
		{"two newer", fmt.Sprintf(`{"protocol":%d,"guest":"j1g0"}`, fleet.Protocol()+2), true, false},
		{"damaged", `{"guest":"j1`, false, false},
		{"ours, with another field", fmt.Sprintf(`{"protocol":%d,"guest":1}`, fleet.Protocol()), false, false},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var got record
		if err := LoadRecord(path, &got); errors.Is(err, ErrNewer) != c.newer || (err == nil) != c.reads || c.reads && got.Guest != "j1g0" {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}
