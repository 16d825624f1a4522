package host

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzRecord: whatever is in a guest's record, it is read or refused; what is read is the same when it is written.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"guest":"j1g0","gen":3,"process":{"pid":1},"complete":true,"incoming":"m1.j1g0","target":true,"listen":"x"}`))
	f.Add([]byte(`{"protocol":99999}`))
	f.Add([]byte(`{"gen":-1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), recordFile)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := ReadRecord[fuzzed](filepath.Dir(path))
		if err != nil {
			return
		}
		if err := WriteRecord(filepath.Dir(path), r); err != nil {
			t.Skip(err) // a time that cannot be written
		}
		again, err := ReadRecord[fuzzed](filepath.Dir(path))
		if err != nil || again.Guest != r.Guest || again.Gen != r.Gen || again.Incoming != r.Incoming || again.Process != r.Process {
			t.Errorf("%+v is %+v when it was written: %v", r, again, err)
		}
		if listen, err := r.receiveAgain("m1"); err == nil && (listen != r.Listen || !r.Target) {
			t.Errorf("%+v listens at %q", r, listen)
		}
	})
}

// fuzzed is a driver's record.
type fuzzed struct {
	Record
	Own string
}

// Ours is the record as this agent writes it.
func (r fuzzed) Ours() fuzzed { r.Recorded = ByUs(); return r }
