package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/act/host/passage"
	"pagurus/internal/note"
)

// TestDiffers: whatever a guest is made of is compared.
func TestDiffers(t *testing.T) {
	was := makes{Image: "sha256:1", CPUs: 2, MemoryBytes: 1 << 30, Accelerator: "kvm", CPU: "x", Machine: "q35", Shape: "{}"}
	if why := was.differs(was); why != "" {
		t.Errorf("it differs from itself: %s", why)
	}
	for want, change := range map[string]func(*makes){
		"image was sha256:1, and is sha256:2": func(m *makes) { m.Image = "sha256:2" },
		"number of CPUs was 2, and is 3":      func(m *makes) { m.CPUs = 3 },
		"memory in bytes was 1073741824":      func(m *makes) { m.MemoryBytes = 1 },
		"accelerator was kvm, and is tcg":     func(m *makes) { m.Accelerator = "tcg" },
		"CPU was x, and is y":                 func(m *makes) { m.CPU = "y" },
		"machine was q35, and is pc":          func(m *makes) { m.Machine = "pc" },
		"shape was {}, and is  here":          func(m *makes) { m.Shape = "" },
	} {
		is := was
		change(&is)
		if why := is.differs(was); !strings.Contains(why, want) {
			t.Errorf("it says %q, want %q", why, want)
		}
	}
}

// TestOpenState: only what is as it was described is opened, from its beginning.
func TestOpenState(t *testing.T) {
	folder := t.TempDir()
	state := filepath.Join(folder, stateFile)
	if err := os.WriteFile(state, []byte("state"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole, err := sum(t.Context(), strings.NewReader("state"))
	if err != nil || whole.Bytes != 5 {
		t.Fatalf("%+v, %v", whole, err)
	}
	for name, c := range map[string]struct {
		a  any
		ok bool
	}{
		"whole":          {about{Format: aboutFormat, Written: whole}, true},
		"longer":         {about{Format: aboutFormat, Written: passage.Written{Bytes: 6, Sum: whole.Sum}}, false},
		"shorter":        {about{Format: aboutFormat, Written: passage.Written{Bytes: 4, Sum: whole.Sum}}, false},
		"other":          {about{Format: aboutFormat, Written: passage.Written{Bytes: 5, Sum: whole.Sum + 1}}, false},
		"a later form":   {about{Format: aboutFormat + 1, Written: whole}, false},
		"negative":       {about{Format: aboutFormat, Written: passage.Written{Bytes: -9}}, false},
		"something else": {[]int{1}, false},
	} {
		if err := note.Replace(filepath.Join(folder, aboutFile), c.a); err != nil {
			t.Fatal(err)
		}
		f, _, err := openState(t.Context(), folder)
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if f != nil {
			if text := make([]byte, 5); c.ok {
				if n, err := f.Read(text); n != 5 || err != nil || string(text) != "state" {
					t.Errorf("%s: it begins with %q, %v", name, text[:n], err)
				}
			}
			f.Close()
		}
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if _, err := sum(over, strings.NewReader("state")); !errors.Is(err, context.Canceled) {
		t.Errorf("it goes on: %v", err)
	}
}

// TestDescriptionWithAnyBitTurned: no bit of a description can be turned unnoticed.
func TestDescriptionWithAnyBitTurned(t *testing.T) {
	was := about{Format: aboutFormat, Make: &makes{CPUs: 2, MemoryBytes: 1 << 30, Accelerator: "kvm"}, Written: passage.Written{Bytes: 5, Sum: 7}}
	text, err := json.MarshalIndent(was, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for at := range text {
		for bit := range 8 {
			damaged := bytes.Clone(text)
			damaged[at] ^= 1 << bit
			var is about
			err := is.parse(damaged)
			if err == nil && is.Format == was.Format && is.Written == was.Written && is.Make != nil && is.Make.differs(*was.Make) == "" &&
				!bytes.EqualFold(damaged, text) && !bytes.Equal(bytes.Join(bytes.Fields(damaged), nil), bytes.Join(bytes.Fields(text), nil)) {
				t.Errorf("bit %d of byte %d: %s", bit, at, damaged)
			}
		}
	}
}

// TestOldQEMUSavesNothing: it would let the guest run before its job's other guests are suspended.
func TestOldQEMUSavesNothing(t *testing.T) {
	d := &Driver{binary: "/does/not/exist"}
	if why := d.trySaving(t.Context(), "7.2.22"); !strings.Contains(why, "QEMU 7.2.22") || !strings.Contains(why, "install 9.0") {
		t.Errorf("it says %q", why)
	}
}
