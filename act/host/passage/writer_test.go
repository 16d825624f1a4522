package passage

import (
	"bytes"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pagurus/internal/testkit"
)

// narrow has room for so many bytes.
type narrow struct{ room int }

var errNarrow = errors.New("no room")

func (n *narrow) Write(p []byte) (int, error) {
	if n.room -= len(p); n.room < 0 {
		return 0, errNarrow
	}
	return len(p), nil
}

// TestDrain: all is written and summed; what cannot be written is read all the same.
func TestDrain(t *testing.T) {
	data := bytes.Repeat([]byte("pagurus"), 1<<20)
	var to bytes.Buffer
	got, err := drain(iotest.OneByteReader(bytes.NewReader(data[:1000])), &to)
	if want := (Written{1000, crc32.Checksum(data[:1000], SumTable)}); err != nil || got != want || !bytes.Equal(to.Bytes(), data[:1000]) {
		t.Errorf("it is %+v, %v, want %+v", got, err, want)
	}
	from := bytes.NewReader(data)
	if _, err := drain(from, &narrow{room: 3 << 20}); !errors.Is(err, errNarrow) || from.Len() > 0 {
		t.Errorf("%v; %d bytes are not read", err, from.Len())
	}
	broken := errors.New("broken")
	if _, err := drain(iotest.ErrReader(broken), io.Discard); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// TestWriter: the process writes as the guest's user, without any privilege, says what it has written, and ends with
// the pipe.
func TestWriter(t *testing.T) {
	testkit.Root(t)
	const uid = 2_100_000_902
	dir := t.TempDir()
	for up := dir; up != "/tmp" && up != "/"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	to, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	from, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Writer{Shim: "/proc/self/exe", UID: uid, Folder: dir, From: from, To: to, Log: log}.Start()
	from.Close()
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("0123456789"), 1<<20)
	if _, err := in.Write(data); err != nil {
		t.Fatal(err)
	}
	found := relays(t, uid)
	if len(found) != 1 || !IsRelay(p.PID) || p.Gone() {
		t.Errorf("as user %d run %v, not process %d", uid, found, p.PID)
	}
	for _, process := range found {
		confined(t, process)
	}
	in.Close()
	testkit.Until(t, 20*time.Second, "the writer has ended", p.Gone)
	written, err := os.ReadFile(to.Name())
	if err != nil || !bytes.Equal(written, data) {
		t.Errorf("%d bytes were written, %v", len(written), err)
	}
	said, err := os.ReadFile(log.Name())
	var w Written
	if err == nil {
		err = json.Unmarshal(said, &w)
	}
	if want := (Written{int64(len(data)), crc32.Checksum(data, SumTable)}); err != nil || w != want {
		t.Errorf("it says %s, %v, want %+v", said, err, want)
	}
	if _, err := (Writer{Shim: filepath.Join(dir, "missing"), UID: uid, Folder: dir, From: to, To: to, Log: log}).Start(); err == nil || !strings.Contains(err.Error(), "writer") {
		t.Errorf("without a program: %v", err)
	}
	if err := write(nil); err == nil {
		t.Error("a writer that nobody tells its user runs")
	}
}
