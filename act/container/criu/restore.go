package criu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/internal/thread"
)

// RestoreSpec says how to restore a container.
type RestoreSpec struct {
	Images string            // the folder with the images; the log is written to it, too
	Root   string            // the container's root file system: a mount point with its earlier content
	Netns  string            // file of its network namespace, in which its addresses exist
	Mounts map[string]string // folders of the host that are mounted in the container: from the names in DumpSpec to the paths here
	Lazy   bool              // memory is fetched when it is touched: a LazyPager runs on Images
	Once   bool              // the images are not needed again: unless Lazy, memory vanishes from them as the processes get it

	// The steps are nil or called once, with the first process's PID here. An error of
	// the first three ends the restore.

	// Filling is called before the images of memory are read.
	Filling func(pid int) error
	// Made is called when all processes exist. A LazyPager has, or is about to get, a
	// userfaultfd of each, and has finished none.
	Made func(pid int) error
	// Resuming is called when everything is restored, sockets included, and all processes
	// are still stopped. A process that is moved into a frozen control group now does not
	// run until the group is thawed.
	Resuming func(pid int) error
	// Failing is called when the restore has failed and its remaining processes are about
	// to be ended (pid 0: none is known). They must be able to end, so none may stay
	// frozen. If Failing returns an error, everything is left as it is.
	Failing func(pid int, cause error) error
}

// Restoring is a restore whose CRIU has been started and waits.
type Restoring struct {
	Lazy bool // as in RestoreSpec; may be set as late as before Do

	Kept []KeptName // set by OpenLeftOut; to be removed when the guest has the files open here

	spec RestoreSpec
	call *call
	over chan struct{} // closed when CRIU has ended
	pid  int

	failed bool  // Failing was called
	kept   error // Failing's error: everything is left as it is
}

// Restore makes the processes of a container from images and lets them run. It returns
// the PID of the first process here.
//
// The first process is a child of the caller, which must wait for it and so reap it: the
// init process of a host that is a container may not reap orphans. The first process does
// not depend on the caller. When the caller dies it becomes a child of init. A later
// caller watches it by its PID and start time. Two things would end it with the caller: a
// signal at its parent's death that it asked for before the dump, which is restored like
// everything else; and the control group of the caller's service, in which it is
// restored. So Resuming must move it to its own group.
//
// After an error nothing remains of the container, unless Failing returned an error. The
// images can be used for another try, unless Once was set. But if Resuming had been reached, the container's
// sockets were closed normally. Their peers are told, unless the link is cut. Data that
// arrived at the sockets is lost, and the network cannot be used any more. So the link
// should stay cut, or arriving frames be held back, until nothing can fail any more.
//
// If the caller dies before Resuming, CRIU ends too, and its processes end or stay
// stopped for ever. A later caller must end the processes in the container's network.
// Between the last step of the last process and the end of Resuming nothing prevents the
// container from running. So its link should be cut until it is meant to run.
func (c Criu) Restore(ctx context.Context, s RestoreSpec) (pid int, err error) {
	return c.restoring(s).Do(ctx)
}

// PrepareRestore starts the CRIU that Do needs. Only the network and the folder for the
// images must exist by then. The caller must call Close, whatever Do returns.
func (c Criu) PrepareRestore(s RestoreSpec) (*Restoring, error) {
	r := c.restoring(s)
	if err := r.startCriu(); err != nil {
		return nil, s.wrap(err)
	}
	return r, nil
}

// startCriu starts CRIU from a thread that stays as long as CRIU, because CRIU ends with
// it.
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
	r.call = &call{criu: c, kind: rpc.CriuReqType_RESTORE, opts: common(), images: s.Images, log: RestoreLog, network: s.Netns, mortal: true, hurry: true}
	o := r.call.opts
	o.Root, o.RstSibling = new(s.Root), new(true)
	for _, name := range slices.Sorted(maps.Keys(s.Mounts)) {
		o.External = append(o.External, fmt.Sprintf("mnt[%s]:%s", name, s.Mounts[name]))
	}
	r.call.steps = map[string]func(*rpc.CriuNotify) error{
		"setup-namespaces": r.named(nil), "post-setup-namespaces": r.named(s.Filling), "post-restore": r.named(s.Made), "pre-resume": r.named(s.Resuming),
	}
	r.call.destroy = r.destroy
	return r
}

// named makes a step from a function that needs the first process's PID. Only some steps
// tell the PID.
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

// destroy ends the restored processes at CRIU's last steps. There CRIU continues despite
// a refusal, or fails on processes that are gone. At earlier steps CRIU itself cleans up
// better.
func (r *Restoring) destroy(n *rpc.CriuNotify, cause error) bool {
	late := slices.Contains([]string{"pre-resume", "post-resume"}, n.GetScript()) && r.pid != 0
	if !late || r.failing(cause) != nil {
		return false
	}
	_ = unix.Kill(r.pid, unix.SIGKILL) // the others end with the first, before CRIU detaches from them
	return true
}

// Do makes the restore, as Restore describes. Call it once.
func (r *Restoring) Do(ctx context.Context) (pid int, err error) {
	if r.Lazy {
		r.call.opts.LazyPages = new(true)
	} else if r.spec.Once { // for images in memory, which would have everything twice
		r.call.opts.AutoDedup = new(true)
	}
	if r.over != nil {
		select {
		case <-r.call.ended: // it ended while it waited, perhaps for a long time
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
		// Processes that are not restored yet are in CRIU's session, and so are its
		// helpers, whose parent has ended.
		return 0, r.spec.wrap(errors.Join(err, host.EndSession(r.call.pid, r.pid)))
	}
	return int(resp.GetRestore().GetPid()), nil
}

// failing calls Failing before the restored processes are ended.
func (r *Restoring) failing(cause error) error {
	if !r.failed && r.spec.Failing != nil {
		r.kept = r.spec.Failing(r.pid, cause)
	}
	r.failed = true
	return r.kept
}

// Close ends the CRIU that PrepareRestore started, if it was not used.
func (r *Restoring) Close() {
	r.call.end()
	close(r.over)
}
