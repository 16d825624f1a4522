package criu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"pagurus/act/container/proc"
)

// RestoreSpec is what is restored, and into what.
type RestoreSpec struct {
	Images string            // the folder with what was dumped; the log comes into it, too
	Root   string            // the container's root file system, a mount point with what it had in it
	Netns  string            // file of its network namespace, in which its addresses exist
	Mounts map[string]string // what is mounted in it from outside: the names that DumpSpec gave, and the paths here
	Lazy   bool              // memory is fetched when it is touched: a Pager runs on Images

	// Steps, each nil or called once, with the first process's number here. An
	// error ends the restore, and nothing of the container is left.

	// Connected: all sockets exist, so packets may reach the container.
	Connected func(pid int) error
	// Resuming: all is restored and stands still. What is put into a frozen
	// control group now does not run until it is thawed.
	Resuming func(pid int) error
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
// After an error nothing is left of the container here, and the images are good
// for another try; but if Connected had been reached its sockets were closed as
// any program's: their peers are told unless its link is cut, what arrived at
// them is lost, and its network is of no use any more. So the link should stay
// cut, or what arrives be held back, until nothing can fail any more.
//
// If the caller dies before Resuming, CRIU goes with it, and what it made
// stands still for ever; a caller that comes after ends what is in the
// container's network. In the moment between the last process's last step and the
// end of Resuming nothing could keep the container from running on, which is why its
// link should be cut until it is meant to run.
func (c Criu) Restore(ctx context.Context, s RestoreSpec) (pid int, err error) {
	wrap := func(err error) error { return fmt.Errorf("restore from %s: %w", s.Images, err) }
	netns, err := os.Open(s.Netns)
	if err != nil {
		return 0, wrap(fmt.Errorf("open its network: %w", err))
	}
	defer netns.Close()
	o := common()
	o.Root = new(s.Root)
	o.RstSibling = new(true)
	o.InheritFd = []*rpc.InheritFd{{Key: new(netKey), Fd: new(int32(firstFile))}}
	for _, name := range slices.Sorted(maps.Keys(s.Mounts)) {
		o.External = append(o.External, fmt.Sprintf("mnt[%s]:%s", name, s.Mounts[name]))
	}
	if s.Lazy {
		o.LazyPages = new(true)
	}
	call := &call{criu: c, kind: rpc.CriuReqType_RESTORE, opts: o, images: s.Images, log: RestoreLog, files: []*os.File{netns}, mortal: true}
	named := func(n *rpc.CriuNotify) {
		if n.GetPid() != 0 { // only some steps tell it
			pid = int(n.GetPid())
		}
	}
	with := func(f func(int) error) func(*rpc.CriuNotify) error {
		return func(n *rpc.CriuNotify) error {
			named(n)
			if f == nil {
				return nil
			}
			return f(pid)
		}
	}
	call.steps = map[string]func(*rpc.CriuNotify) error{
		"setup-namespaces": with(nil), "post-restore": with(nil), "network-unlock": with(s.Connected), "pre-resume": with(s.Resuming),
	}
	call.destroy = func(n *rpc.CriuNotify) bool {
		// From here on CRIU goes on whatever it is told, or trips over
		// processes that are gone. Before, it cleans up better itself.
		late := slices.Contains([]string{"network-unlock", "pre-resume", "post-resume"}, n.GetScript()) && pid != 0
		if late {
			_ = unix.Kill(pid, unix.SIGKILL) // all others go with the first, before CRIU lets go of them
		}
		return late
	}
	resp, err := call.do(ctx)
	if err != nil {
		// What is not restored yet is in CRIU's session, and so are its helpers, which
		// have no parent any more.
		return 0, wrap(errors.Join(err, proc.EndSession(call.pid, pid)))
	}
	return int(resp.GetRestore().GetPid()), nil
}
