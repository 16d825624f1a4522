package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pagurus/fleet"
)

// FuzzRead: whatever is in a file of the audit, it is read to its end; each line is a record or is counted as damaged; and
// a record that is added is found.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"at":"2026-11-26T00:00:00Z","did":"drain","on":"host1"}` + "\n"))
	f.Add([]byte(`{"at":"2026-11-26T00:00:00Z","did":"cut`))
	f.Add(append(bytes.Repeat([]byte("x"), lineLimit+5), "\n{}\n\n"...))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir, at := t.TempDir(), time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
		if err := os.WriteFile(filepath.Join(dir, "2026-11"+extension), text, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir, Bounds{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := l.Append(fleet.AuditRecord{At: at, Did: "the last one"}); err != nil {
			t.Fatal(err)
		}
		var last fleet.AuditRecord
		read := 0
		damaged, err := l.Read(t.Context(), time.Time{}, func(r fleet.AuditRecord) error { last, read = r, read+1; return nil })
		if err != nil || last.Did != "the last one" || !last.At.Equal(at) {
			t.Errorf("the last one is %+v: %v", last, err)
		}
		if lines := bytes.Count(text, []byte("\n")) + 2; read+damaged > lines {
			t.Errorf("%d lines are %d records and %d damaged ones", lines, read, damaged)
		}
	})
}
