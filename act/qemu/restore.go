package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pagurus/act/host/passage"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// The files of a checkpoint. The description is written last: without it there is no checkpoint.
const (
	stateFile   = "guest.state" // QEMU's stream
	aboutFile   = "qemu.json"   // about
	writerLog   = "save.log"    // of the process that writes it, in the guest's folder
	givenSave   = "checkpoint"  // QEMU's name of the pipe to that process
	aboutFormat = 1
)

// makes is what a guest is made of. From a checkpoint only the same can be made.
type makes struct {
	Image       fleet.Digest `json:"image"`
	CPUs        int          `json:"cpus"`
	MemoryBytes int64        `json:"memory_bytes"`
	Accelerator string       `json:"accelerator"`
	CPU         string       `json:"cpu"`             // the model that it sees
	Machine     string       `json:"machine"`         // QEMU's type
	Shape       string       `json:"shape,omitempty"` // JSON; empty: none
}

func (d *Driver) makesOf(t fleet.Task, m machine) *makes {
	out := makes{
		Image: t.Guest.Image, CPUs: m.cpus, MemoryBytes: wholeMemory(m) + odd(m), Accelerator: m.accelerator,
		CPU: seenCPU(d.able()), Machine: machineType,
	}
	switch {
	case m.accelerator != Hardware || m.cpu == "":
	case fleet.OwnProcessor(m.cpu):
		out.CPU += " as " + m.cpu
	default:
		out.CPU = m.cpu
	}
	if m.tuned != nil {
		text, err := json.Marshal(m.tuned.Shape)
		if err != nil {
			panic(err) // numbers and strings always encode
		}
		out.Shape = string(text)
	}
	return &out
}

// differs says, for people, why a guest that is made of this cannot be made from a checkpoint of one that was made of
// that; empty: it can.
func (m makes) differs(that makes) string {
	for _, c := range []struct {
		what      string
		this, was any
	}{
		{"image", m.Image, that.Image}, {"number of CPUs", m.CPUs, that.CPUs}, {"memory in bytes", m.MemoryBytes, that.MemoryBytes},
		{"accelerator", m.Accelerator, that.Accelerator}, {"CPU", m.CPU, that.CPU}, {"machine", m.Machine, that.Machine}, {"shape", m.Shape, that.Shape},
	} {
		if c.this != c.was {
			return fmt.Sprintf("its %s was %v, and is %v here", c.what, c.was, c.this)
		}
	}
	return ""
}

// about describes a checkpoint.
type about struct {
	Format int    `json:"format"`
	Make   *makes `json:"make,omitempty"` // nil: unknown
	passage.Written
}

// parse reads a description. A word that is not known is damage: what it stood for would be compared with nothing.
func (a *about) parse(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(a); err != nil {
		return err
	}
	if d.More() {
		return errors.New("something follows the description")
	}
	return nil
}

// sum reads a file to its end, unless ctx ends.
func sum(ctx context.Context, from io.Reader) (w passage.Written, err error) {
	h := crc32.New(passage.SumTable)
	for part := int64(sumAtOnce); part == sumAtOnce && err == nil; w.Bytes += part {
		if part, err = io.CopyN(h, from, sumAtOnce); errors.Is(err, io.EOF) {
			err = nil
		}
		err = errors.Join(err, ctx.Err())
	}
	w.Sum = h.Sum32()
	return w, err
}

// sumAtOnce is how many bytes are summed between two looks whether that is wanted.
const sumAtOnce = 16 << 20

// errDamaged: a checkpoint is not as it was written.
var errDamaged = errors.New("the checkpoint is damaged, or was not written to its end")

// openState opens the state in a checkpoint's folder, after it has been compared with its description.
func openState(ctx context.Context, folder string) (_ *os.File, a about, err error) {
	text, err := os.ReadFile(filepath.Join(folder, aboutFile))
	if err == nil {
		err = a.parse(text)
	}
	if err == nil && a.Format != aboutFormat {
		err = fmt.Errorf("it has form %d, and this agent knows form %d", a.Format, aboutFormat)
	}
	if err != nil {
		return nil, a, fmt.Errorf("%w: %w", errDamaged, err)
	}
	state, err := os.OpenFile(filepath.Join(folder, stateFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, a, fmt.Errorf("%w: %w", errDamaged, err)
	}
	has, err := sum(ctx, io.LimitReader(state, a.Bytes+1))
	if err == nil && has != a.Written {
		err = fmt.Errorf("%w: %s has %d bytes with checksum %08x, not %d with %08x", errDamaged, stateFile, has.Bytes, has.Sum, a.Bytes, a.Sum)
	}
	if err == nil {
		_, err = state.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, a, errors.Join(err, state.Close())
	}
	return state, a, nil
}

// Restore makes a guest from a folder that Saved has completed, here or on another host. The guest is suspended until
// Resume. If it was restored already in this generation, Restore does nothing. After an error nothing of the guest is
// left, unless it was here already: then it is not touched.
func (d *Driver) Restore(ctx context.Context, t fleet.Task, folder string) error {
	d.making.RLock()
	defer d.making.RUnlock()
	return d.guests.Restore(ctx, t.Guest.ID, t.Guest.Gen, func() error { return d.restore(ctx, t, folder) })
}

func (d *Driver) restore(ctx context.Context, t fleet.Task, folder string) error {
	m, _, err := d.machine(ctx, t)
	if err != nil {
		return err
	}
	state, a, err := openState(ctx, folder)
	if err != nil {
		return err
	}
	defer state.Close()
	if a.Make != nil {
		if why := d.makesOf(t, m).differs(*a.Make); why != "" {
			return fmt.Errorf("the checkpoint is of another guest than this: %s", why)
		}
	}
	m.state, m.restored = state, true
	g, err := d.boot(ctx, t, m)
	if err != nil {
		return err
	}
	q, err := g.monitor(ctx)
	if err == nil { // as at the source of a move: a link that breaks wakes the guest agent
		_, err = d.Link(ctx, t.Guest.ID)
	}
	if err == nil {
		err = loadSnapshot(ctx, q.Do, firstFile+1)
	}
	if err != nil {
		if g.Dead() {
			err = fmt.Errorf("%w: %s", err, d.LastWords(g.ID))
		}
		return err
	}
	if err := fault.Point("qemu.restore.after-load"); err != nil {
		return err
	}
	return g.Remember(func(r *record) { r.Complete = true })
}
