package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/passage"
	"pagurus/act/qemu/qmp"
	"pagurus/fleet"
	"pagurus/internal/fault"
)

// saving is a checkpoint of a guest that is being made here, from Arm to Disarm.
type saving struct {
	Folder string        `json:"folder"`
	Step   savingStep    `json:"step"`
	CutAt  time.Time     `json:"cut_at,omitzero"` // when the guest was told to stop
	Stop   time.Duration `json:"stop_ns,omitempty"`
	Bytes  int64         `json:"bytes,omitempty"`
	Writer host.Process  `json:"writer,omitzero"` // of the state; zero while armed: none waits
	Void   string        `json:"void,omitempty"`  // why there is no checkpoint
}

// savingStep is how far a checkpoint is.
type savingStep string

// The steps.
const (
	savingArmed   savingStep = "armed"
	savingCutting savingStep = "cutting" // an agent that dies now leaves it in doubt what QEMU does: Cut begins again
	savingCut     savingStep = "cut"     // QEMU writes, and the guest is suspended
	savingOn      savingStep = "on"      // QEMU writes, and the guest runs
	savingDone    savingStep = "done"    // all is in the folder
	savingVoid    savingStep = "void"
)

// underWay reports whether the guest may not be moved, nor another checkpoint of it be made.
func (s *saving) underWay() bool { return s != nil && s.Step != savingDone && s.Step != savingVoid }

// ready reports whether an armed guest's writer waits, with QEMU's end of its pipe.
func (s *saving) ready() bool {
	return s.Step == savingArmed && s.Writer != (host.Process{}) && !s.Writer.Gone()
}

// halted reports whether the guest is suspended for the checkpoint.
func (s *saving) halted() bool {
	return s != nil && (s.Step == savingCut || s.Step == savingCutting)
}

// Errors of calls in the wrong order. They change nothing.
var (
	errNoSaving = errors.New("no checkpoint of it is prepared")
	errNotCut   = errors.New("it has not been cut")
	errSaving   = errors.New("a checkpoint of it is being made")
)

// pagePoll is how often QEMU is asked whether a guest may run on after its cut.
const pagePoll = time.Millisecond

// firstSaving is the first QEMU that leaves a guest suspended that was suspended when QEMU began to write it. An earlier
// one lets it run as soon as it notices changes of memory, before the other guests of its job are suspended.
const firstSaving = 9

// trySaving checks whether guests can be written here while they run, with QEMU's account, and says what to do if not;
// empty: they can.
func (d *Driver) trySaving(ctx context.Context, version string) string {
	if majorVersion(version) < firstSaving {
		return fmt.Sprintf("QEMU %s lets a guest run on before it is told to: install %d.0 or newer (Debian 12 has one in bookworm-backports)", version, firstSaving)
	}
	err := tryUserfault(ctx, d.binary, backgroundSnapshot, d.account.Attributes(), "-sandbox", sandbox)
	if err == nil {
		return ""
	}
	return fmt.Sprintf("QEMU cannot write a guest while it runs, for which user %s has to be allowed to use userfaultfd with write protection (Linux 5.7 or newer): %s; run `pagurus doctor --fix` on it and restart its agent", d.config.User, err)
}

// Arm prepares a checkpoint of a running guest into an empty folder: what prevents it is found out before the guest
// is suspended. After an error nothing is left of it.
func (d *Driver) Arm(ctx context.Context, id fleet.GuestID, folder string) error {
	g, q, err := d.here(ctx, id)
	if err == nil {
		err = d.arm(ctx, g, q, folder)
	}
	if err != nil {
		return fmt.Errorf("prepare a checkpoint of guest %s: %w", id, err)
	}
	return nil
}

func (d *Driver) arm(ctx context.Context, g *guest, q *qmp.Client, folder string) error {
	if !g.streaming.TryLock() {
		return errors.New("a move or another checkpoint of it begins")
	}
	defer g.streaming.Unlock()
	if s := g.Remembered().Saving; s.underWay() {
		if s.Folder == folder && s.Step == savingArmed {
			d.readyWriter(ctx, g, q)
			return nil
		}
		return fmt.Errorf("%w already, in %s", errSaving, s.Folder)
	}
	info, err := queryMigrate(ctx, q)
	if err != nil || info.underWay() || info.parted() || g.Remembered().Target {
		return errors.Join(err, errors.New("it is being moved"))
	}
	if status, err := vmStatus(ctx, q); err != nil || status != vmRunning {
		return errors.Join(err, fmt.Errorf("it does not run here: it is %s", status))
	}
	if err := emptyFolder(folder); err != nil {
		return err
	}
	if address := g.Remembered().Device; address != "" {
		return fmt.Errorf("it has the device %s of this host for itself, whose state cannot be written", address)
	}
	if can := d.able(); !can.Saves {
		return errors.New(can.NoSaving)
	}
	if err := prepareSave(ctx, q.Do); err != nil {
		return fmt.Errorf("QEMU cannot write it while it runs: %w", err)
	}
	area, err := g.area(ctx, q)
	if err == nil {
		err = area.Populate(ctx)
	}
	if err != nil { // as of a guest whose memory is in several places: it only makes the stop shorter
		d.config.Log.Debug("a guest's memory is not prepared for its checkpoint", "guest", g.ID, "cause", err)
	}
	if err := fault.Point("qemu.arm.before-note"); err != nil {
		return err
	}
	err = g.Remember(func(r *record) {
		r.Saving = &saving{Folder: folder, Step: savingArmed}
		if r.Copy != nil {
			r.Copy.Past = true
		}
	})
	if err == nil {
		d.readyWriter(ctx, g, q)
	}
	return err
}

// readyWriter has an armed guest's writer wait for its cut: to start one takes longer than to suspend a guest, and the others of
// its job would be suspended meanwhile. Without one Cut starts it.
func (d *Driver) readyWriter(ctx context.Context, g *guest, q *qmp.Client) {
	if g.Remembered().Saving.ready() {
		return
	}
	writer, err := d.writer(ctx, g, q)
	if err == nil {
		err = g.Remember(func(r *record) { r.Saving.Writer = writer })
	}
	if err != nil {
		err = errors.Join(err, dropWriter(ctx, q, writer))
		d.config.Log.Debug("a guest's checkpoint is written by a process that starts at its cut", "guest", g.ID, "cause", err)
	}
}

// dropWriter ends a writer whose pipe QEMU may still have.
func dropWriter(ctx context.Context, q *qmp.Client, writer host.Process) error {
	_ = q.Do(ctx, "closefd", map[string]any{"fdname": givenSave}, nil) // refused unless QEMU has it, and has not begun to write
	return writer.End()
}

// emptyFolder checks that a folder is one, and empty.
func emptyFolder(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("the folder %q is not an absolute path", path)
	}
	entries, err := os.ReadDir(path)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("the folder %s is not empty: it has %s", path, entries[0].Name())
	}
	return err
}

// prepareSave makes QEMU's next migration one that writes a guest as it is at one moment while it runs on: each page
// before it changes. QEMU refuses what cannot be done together with that, and kernels and memory that cannot do it.
func prepareSave(ctx context.Context, do streamDo) error {
	type capability struct {
		Name  string `json:"capability"`
		State bool   `json:"state"`
	}
	if _, err := awaitStop(ctx, do, false); err != nil { // it needs the return path
		return err
	}
	all := []capability{{backgroundSnapshot, true}}
	for _, name := range []string{"return-path", "pause-before-switchover", "xbzrle", "multifd", "postcopy-ram", "postcopy-preempt", "auto-converge"} {
		all = append(all, capability{name, false})
	}
	err := do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": all}, nil)
	if err == nil {
		err = do(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(unlimited)}, nil)
	}
	return err
}

// Cut suspends an armed guest and has QEMU write it. After an error the guest runs, and there is no checkpoint.
func (d *Driver) Cut(ctx context.Context, id fleet.GuestID) error {
	g, q, err := d.here(ctx, id)
	if err == nil {
		err = d.cut(ctx, g, q)
	}
	if err != nil {
		return fmt.Errorf("suspend guest %s for a checkpoint: %w", id, err)
	}
	return nil
}

func (d *Driver) cut(ctx context.Context, g *guest, q *qmp.Client) error {
	g.streaming.Lock()
	defer g.streaming.Unlock()
	switch s := g.Remembered().Saving; {
	case s == nil:
		return errNoSaving
	case s.Step == savingCut:
		return nil
	case s.Step == savingVoid:
		return errors.New(s.Void)
	case s.Step == savingCutting: // by an agent that died
		if err := g.unsave(ctx, q); err != nil {
			return g.void(ctx, q, err)
		}
	case s.Step != savingArmed:
		return errors.New("it has been cut before, and runs on")
	}
	err := d.write(ctx, g, q)
	if err == nil {
		err = g.Remember(func(r *record) { r.Saving.Step = savingCut })
	}
	if err != nil {
		return g.void(ctx, q, err)
	}
	d.holdCut(g)
	return nil
}

// write suspends the guest and has QEMU begin to write it.
func (d *Driver) write(ctx context.Context, g *guest, q *qmp.Client) error {
	var err error
	writer := g.Remembered().Saving.Writer
	if !g.Remembered().Saving.ready() {
		if err = prepareSave(ctx, q.Do); err == nil {
			writer, err = d.writer(ctx, g, q)
		}
	}
	if err == nil {
		err = g.Remember(func(r *record) {
			r.Saving.Step, r.Saving.CutAt, r.Saving.Writer = savingCutting, time.Now(), writer
		})
	}
	hurry(g.Remembered().Process.PID)
	if err == nil {
		err = fault.Point("qemu.cut.before-stop")
	}
	if err == nil {
		err = q.Do(ctx, "stop", nil, nil)
	}
	if err == nil {
		err = fault.Point("qemu.cut.after-stop")
	}
	if err == nil {
		err = q.Do(ctx, "migrate", map[string]any{"uri": "fd:" + givenSave}, nil)
	}
	if err == nil {
		err = fault.Point("qemu.cut.after-begin")
	}
	return err
}

// writer starts the process that writes what QEMU sends to the folder, and gives QEMU its pipe.
func (d *Driver) writer(ctx context.Context, g *guest, q *qmp.Client) (p host.Process, err error) {
	path := filepath.Join(g.Remembered().Saving.Folder, stateFile)
	if err := ignoreAbsent(os.Remove(path)); err != nil { // of an agent that died
		return p, err
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return p, err
	}
	defer to.Close()
	if err := ignoreAbsent(os.Remove(filepath.Join(g.Dir, writerLog))); err != nil {
		return p, err
	}
	log, err := os.OpenFile(filepath.Join(g.Dir, writerLog), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return p, err
	}
	defer log.Close()
	from, in, err := os.Pipe()
	if err != nil {
		return p, err
	}
	defer from.Close()
	defer in.Close()
	p, err = passage.Writer{Shim: d.config.Shim, UID: uint32(g.uid()), Folder: g.Dir, From: from, To: to, Log: log}.Start()
	if err == nil {
		err = q.Give(ctx, givenSave, in)
	}
	return p, err // without the pipe's end the writer ends
}

// void makes a checkpoint void because of err: the guest runs, and nothing writes it.
func (g *guest) void(ctx context.Context, q *qmp.Client, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return errors.Join(err, g.unsave(ctx, q), g.Remember(func(r *record) {
		if r.Saving != nil {
			r.Saving.Step, r.Saving.Void = savingVoid, err.Error()
		}
	}))
}

// unsave ends QEMU's writing of a checkpoint, if there is any, and lets the guest run. QEMU (10.0) crashes if writing is
// cancelled, or fails, before it has begun to write memory.
func (g *guest) unsave(ctx context.Context, q *qmp.Client) error {
	info, err := g.begun(ctx, q)
	if err == nil && info.underWay() {
		err = q.Do(ctx, "migrate_cancel", nil, nil)
	}
	for err == nil && info.underWay() {
		if err = g.wait(ctx, nil, brief); err == nil {
			info, err = queryMigrate(ctx, q)
		}
	}
	err = errors.Join(err, g.goOn(ctx, q))
	relax(g.Remembered().Process.PID)
	var writer host.Process
	if s := g.Remembered().Saving; s != nil {
		writer = s.Writer
	}
	return errors.Join(err, dropWriter(ctx, q, writer))
}

// goOn lets a guest run that is suspended for a checkpoint.
func (g *guest) goOn(ctx context.Context, q *qmp.Client) error {
	status, err := vmStatus(ctx, q)
	if err != nil || status == vmRunning {
		return err
	}
	return q.Do(ctx, "cont", nil, nil)
}

// holdCut lets a guest run on by itself if no order to go on comes.
func (d *Driver) holdCut(g *guest) {
	s := g.Remembered().Saving
	if !s.halted() {
		return
	}
	err := d.guests.Go(func() {}, func() {
		select {
		case <-d.life.Done():
			return
		case <-g.Died:
			return
		case <-time.After(fleet.CutHold):
		}
		forgotten := func() bool {
			now := g.Remembered().Saving
			return now.halted() && now.CutAt.Equal(s.CutAt)
		}
		if !forgotten() { // so that none that is long over locks out the next
			return
		}
		g.streaming.Lock()
		defer g.streaming.Unlock()
		if !forgotten() {
			return
		}
		q, err := g.monitor(d.life)
		if err == nil {
			err = g.void(d.life, q, fmt.Errorf("no order to go on came within %s of the cut", fleet.CutHold))
		}
		d.config.Log.Warn("no order to go on after the cut of a checkpoint, guest resumed", "guest", g.ID, "cause", err)
	})
	if err != nil {
		d.config.Log.Warn("a guest that is suspended for a checkpoint is not watched", "guest", g.ID, "cause", err)
	}
}

// Continue lets a guest run on after its cut. A second call is not an error. After an error the guest runs, and there
// is no checkpoint; but a call in the wrong order changes nothing.
func (d *Driver) Continue(ctx context.Context, id fleet.GuestID) error {
	g, q, err := d.here(ctx, id)
	if err == nil {
		err = g.continueCut(ctx, q)
	}
	if err != nil {
		return fmt.Errorf("let guest %s run on after its cut: %w", id, err)
	}
	return nil
}

func (g *guest) continueCut(ctx context.Context, q *qmp.Client) error {
	g.streaming.Lock()
	defer g.streaming.Unlock()
	switch s := g.Remembered().Saving; {
	case s == nil:
		return errNoSaving
	case s.Step == savingOn || s.Step == savingDone:
		return nil
	case s.Step == savingVoid:
		return errors.New(s.Void)
	case s.Step != savingCut:
		return errNotCut
	}
	g.Mu.Lock()
	since := g.stoppedAt // as QEMU says
	g.Mu.Unlock()
	if since.IsZero() { // an agent died since
		since = g.Remembered().Saving.CutAt
	}
	// If the guest ran before, QEMU would stop it again, and another moment would be saved.
	info, err := g.begun(ctx, q)
	if err == nil && !info.underWay() && info.Status != stateCompleted {
		err = g.whyNotSaved(info)
	}
	if err == nil {
		err = q.Do(ctx, "cont", nil, nil)
	}
	stop := time.Since(since)
	relax(g.Remembered().Process.PID) // else what writes this guest keeps others from being cut
	if err == nil {
		err = fault.Point("qemu.continue.after-cont")
	}
	if err == nil {
		err = g.Remember(func(r *record) {
			r.Saving.Step, r.Saving.Stop = savingOn, stop
		})
	}
	if err != nil {
		return g.void(ctx, q, err)
	}
	return nil
}

// begun waits until QEMU writes a guest's memory, if it is writing the guest at all: from then on it has the state of all
// devices and notices each change of memory.
func (g *guest) begun(ctx context.Context, q *qmp.Client) (info migration, err error) {
	for {
		info, err = queryMigrate(ctx, q)
		if err != nil || !info.underWay() || info.RAM.Normal+info.RAM.Zero > 0 {
			return info, err
		}
		if err := g.wait(ctx, nil, pagePoll); err != nil {
			return info, err
		}
	}
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
