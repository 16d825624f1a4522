package criu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/internal/thread"
)

// RestoreSpec is what is restored, and into what.
type RestoreSpec struct {
	Images string            // the folder with what was dumped; the log comes into it, too
	Root   string            // the container's root file system, a mount point with what it had in it
	Netns  string            // file of its network namespace, in which its addresses exist
	Mounts map[string]string // what is mounted in it from outside: the names that DumpSpec gave, and the paths here
	Lazy   bool              // memory is fetched when it is touched: a Pager runs on Images

	// Steps, nil or called once, with the first process's number here. An error of the
	// first two ends the restore.

	// Made: all processes are there. A Pager has, or is about to get, a userfaultfd of
	// each, and is done with none.
	Made func(pid int) error
	// Resuming: all is restored, its sockets included, and stands still. What is
	// put into a frozen control group now does not run until it is thawed.
	Resuming func(pid int) error
	// Failing: the restore has failed, and what of it is still there (pid 0: none that is
	// known) is about to be ended, which has to be possible: nothing may stay frozen. An
	// error leaves all as it is.
	Failing func(pid int, cause error) error
}

// Restoring is a restore whose CRIU has been started and waits.
type Restoring struct {
	Lazy bool // as RestoreSpec has it, which need not be known earlier

	spec RestoreSpec
	call *call
	over chan struct{} // closed when CRIU has ended
	pid  int

	failed bool  // Failing was called
	kept   error // and wants all left as it is
}

// Restore makes the processes of a container from images and lets them run. It
// gives the number of the first process here.
//
// The first process is a child of the caller's, who can wait for it, and who
// buries it, since not every system's first process does so for the container it
// finds itself in. It depends on the caller in nothing: when the caller dies it
// becomes a child of that first process, as all orphans do, and a caller that
// comes after watches it by its number and start time. Two things would end it
// with the caller: a signal at its parent's death, asked for before it was
// dumped (restored as all else), and the control group of the caller's service,
// in which it is restored: Resuming is when to move it to its own.
//
// After an error nothing is left of the container here, unless Failing wants it to be,
// and the images are good for another try; but if Resuming had been reached its sockets were closed as
// any program's: their peers are told unless its link is cut, what arrived at
// them is lost, and its network is of no use any more. So the link should stay
// cut, or what arrives be held back, until nothing can fail any more.
//
// If the caller dies before Resuming, CRIU goes with it, and what it made ends, or
// stands still for ever; a caller that comes after ends what is in the
// container's network. In the moment between the last process's last step and the
// end of Resuming nothing could keep the container from running on, which is why its
// link should be cut until it is meant to run.
func (c Criu) Restore(ctx context.Context, s RestoreSpec) (pid int, err error) {
	return c.restoring(s).Do(ctx)
}

// RestoreLimit is how long CRIU may take to make a container of so much memory: a minute,
// and a second for each 64 MiB that it may have to put in place.
func RestoreLimit(bytes int64) time.Duration {
	return time.Minute + time.Duration(bytes>>26)*time.Second
}

// PrepareRestore starts the CRIU that Do needs. Of what is restored and into what
// only the network and the folder for the images have to be there yet. Close has to
// be called, whatever Do says.
func (c Criu) PrepareRestore(s RestoreSpec) (*Restoring, error) {
	r := c.restoring(s)
	if err := r.startCriu(); err != nil {
		return nil, s.wrap(err)
	}
	return r, nil
}

// startCriu starts CRIU, by a thread that stays as long, for CRIU ends with it.
func (r *Restoring) startCriu() error {
	over, begun := make(chan struct{}), make(chan error, 1)
	go thread.Own(func() error {
		err := r.call.startCriu()
		begun <- err
		if err == nil {
			<-over
		}
		return nil
	})
	r.over = over
	return <-begun
}

func (s RestoreSpec) wrap(err error) error { return fmt.Errorf("restore from %s: %w", s.Images, err) }

func (c Criu) restoring(s RestoreSpec) *Restoring {
	r := &Restoring{spec: s, Lazy: s.Lazy}
	r.call = &call{criu: c, kind: rpc.CriuReqType_RESTORE, opts: common(), images: s.Images, log: RestoreLog, network: s.Netns, mortal: true}
	o := r.call.opts
	o.Root, o.RstSibling = new(s.Root), new(true)
	for _, name := range slices.Sorted(maps.Keys(s.Mounts)) {
		o.External = append(o.External, fmt.Sprintf("mnt[%s]:%s", name, s.Mounts[name]))
	}
	r.call.steps = map[string]func(*rpc.CriuNotify) error{
		"setup-namespaces": r.named(nil), "post-restore": r.named(s.Made), "pre-resume": r.named(s.Resuming),
	}
	r.call.destroy = r.destroy
	return r
}

// named is a step that knows the first process's number, which only some tell.
func (r *Restoring) named(f func(int) error) func(*rpc.CriuNotify) error {
	return func(n *rpc.CriuNotify) error {
		if n.GetPid() != 0 {
			r.pid = int(n.GetPid())
		}
		if f == nil {
			return nil
		}
		return f(r.pid)
	}
}

// destroy: from its last steps on CRIU goes on whatever it is told, or trips over
// processes that are gone. Before, it cleans up better itself.
func (r *Restoring) destroy(n *rpc.CriuNotify, cause error) bool {
	late := slices.Contains([]string{"pre-resume", "post-resume"}, n.GetScript()) && r.pid != 0
	if !late || r.failing(cause) != nil {
		return false
	}
	_ = unix.Kill(r.pid, unix.SIGKILL) // all others go with the first, before CRIU lets go of them
	return true
}

// Do makes the restore, once, as Restore says.
func (r *Restoring) Do(ctx context.Context) (pid int, err error) {
	if r.Lazy {
		r.call.opts.LazyPages = new(true)
	}
	if r.over != nil {
		select {
		case <-r.call.ended: // somebody ended it while it waited, for long perhaps
			r.Close()
			if err := r.startCriu(); err != nil {
				return 0, r.spec.wrap(err)
			}
		default:
		}
	}
	resp, err := r.call.do(ctx)
	if err != nil && r.failing(err) != nil {
		return 0, r.spec.wrap(errors.Join(err, r.kept))
	}
	if err != nil {
		// What is not restored yet is in CRIU's session, and so are its helpers, which
		// have no parent any more.
		return 0, r.spec.wrap(errors.Join(err, host.EndSession(r.call.pid, r.pid)))
	}
	return int(resp.GetRestore().GetPid()), nil
}

// failing tells that what was made is about to be ended.
func (r *Restoring) failing(cause error) error {
	if !r.failed && r.spec.Failing != nil {
		r.kept = r.spec.Failing(r.pid, cause)
	}
	r.failed = true
	return r.kept
}

// Close ends the CRIU that PrepareRestore started, if it was not needed.
func (r *Restoring) Close() {
	r.call.end()
	close(r.over)
}
