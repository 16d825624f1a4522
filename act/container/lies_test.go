package container_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent/drivertest"
)

// TestSourceLies: a source that was taken over gives a guest's programs a filter that allows every call, after they
// were dumped, or a list of pages that nobody can read. The target does not resume them, says why, and the guest goes
// on at the source.
func TestSourceLies(t *testing.T) {
	for name, c := range map[string]struct {
		image string
		lie   func(path string) error
		said  string
	}{
		"filter": {"seccomp.img", weaken, "has no filter of system calls that Pagurus gave it"},
		"pages":  {"pagemap-1.img", func(path string) error { return os.Truncate(path, 9) }, "it is cut off"},
	} {
		t.Run(name, func(t *testing.T) { lies(t, c.image, c.lie, c.said) })
	}
}

// lies moves a guest one of whose images is changed, which is said.
func lies(t *testing.T, image string, lie func(path string) error, why string) {
	w := newWorld(t)
	tk := task("j1g0")
	tk.Order.Migration = "m1.j1g0"
	defer w.sweep(t, tk.Guest.ID)
	source, target := w.open(t, 0), w.open(t, 1)
	defer target.Close()
	if err := source.Start(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
	listen, err := target.Receive(t.Context(), tk)
	if err != nil {
		t.Fatal(err)
	}
	tk.Listen = listen
	if err := source.Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	source.Close()
	lied := filepath.Join(t.TempDir(), "lied")
	switching := w.stepper(t, 0, fleet.Switch, tk, "container.switch.after-dump=until:"+lied)
	var said bytes.Buffer
	switching.Stdout = &said
	if err := switching.Start(); err != nil {
		t.Fatal(err)
	}
	images := filepath.Join(w.hosts[0].Run, "containers", string(tk.Guest.ID), "images")
	testkit.Until(t, time.Minute, "the guest was dumped", func() bool {
		_, err := os.Stat(filepath.Join(images, "stats-dump")) // CRIU's last file
		return err == nil
	})
	if err := errors.Join(lie(filepath.Join(images, image)), os.WriteFile(lied, nil, 0o600)); err != nil {
		t.Error(err)
	}
	if err := switching.Wait(); err == nil || !strings.Contains(said.String(), why) {
		t.Errorf("the switch says %s: %v", said.String(), err)
	}
	if there, err := target.Inspect(t.Context()); err != nil || there[tk.Guest.ID].Run == fleet.Running {
		t.Errorf("at the target: %v, %v", there, err)
	}
	source = w.open(t, 0)
	defer source.Close()
	if err := source.Resume(t.Context(), tk.Guest.ID); err != nil {
		t.Error(err)
	}
	drivertest.Healthy(t, source, tk.Guest.ID)
}

// weaken makes all filters in an image allow every call.
func weaken(path string) error {
	const head = 8 // two magic numbers; the entry's length follows
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var all seccomp.SeccompEntry
	if err := proto.Unmarshal(text[head+4:], &all); err != nil {
		return err
	}
	for _, f := range all.SeccompFilters {
		f.Filter = binary.NativeEndian.AppendUint32([]byte{unix.BPF_RET, 0, 0, 0}, 0x7fff0000) // SECCOMP_RET_ALLOW
	}
	entry, err := proto.Marshal(&all)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(binary.LittleEndian.AppendUint32(text[:head:head], uint32(len(entry))), entry...), 0o600)
}
