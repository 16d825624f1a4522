package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// applyLimit ends an attempt to match the host's networks; it takes
// milliseconds where all is well.
const applyLimit = 30 * time.Second

// removing begins the name of the trouble with a guest that will not go.
const removing = "removing guest "

// errOtherCluster ends a session with a controller that is not ours.
var errOtherCluster = errors.New("the controller is of another cluster")

// want makes the host be what the controller says it should. What a session
// says first counts whatever came before it: a controller whose store was put
// back from a copy counts revisions from there. An error means that the
// controller is not to be listened to.
func (a *Agent) want(w fleet.Wanted, first bool) error {
	if err := a.belong(w.Cluster); err != nil {
		return err
	}
	a.mu.Lock()
	if !first && a.wanted != nil && w.Revision < a.wanted.Revision {
		a.Log.Warn("passed over what an older revision wants", "revision", w.Revision, "have", a.wanted.Revision)
		a.mu.Unlock()
		return nil
	}
	a.wanted = &w
	a.mu.Unlock()
	// Before the networks, which may take long: the owner comes first.
	a.trouble("the host's owner", a.Owner.Agree(w.Policy))
	a.Isolation.Want(w.IsolatedCPUs)
	a.match(a.ctx) // to its end, also when the session ends meanwhile
	a.sweep()
	return nil
}

// belong makes this host a member of the cluster it first hears from, for as
// long as its run folder lives.
func (a *Agent) belong(cluster string) error {
	if cluster == "" {
		return fmt.Errorf("%w: it does not say which", errOtherCluster)
	}
	mine, err := a.cluster()
	if err != nil || mine == cluster {
		return err
	}
	if mine == "" {
		err := os.MkdirAll(a.Config.Run, 0o755)
		if err == nil {
			err = note.WriteDurably(a.clusterFile(), []byte(cluster+"\n"), 0o600)
		}
		if err != nil {
			return fmt.Errorf("joining cluster %s: %w", cluster, err)
		}
		a.Log.Info("joined", "cluster", cluster)
		return nil
	}
	return fmt.Errorf("%w: host %s belongs to %s, the controller is of %s; to give the host to it, end the agent, remove the folder %s and start it again",
		errOtherCluster, a.Host, mine, cluster, a.Config.Run)
}

func (a *Agent) clusterFile() string { return filepath.Join(a.Config.Run, "cluster") }

func (a *Agent) cluster() (string, error) {
	b, err := os.ReadFile(a.clusterFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading which cluster this host belongs to: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// match makes networks and shares what is wanted, if they are not already.
// What goes wrong is trouble, tried again about once a second; orders that
// need what is missing fail by themselves. Networks are there when it returns,
// since orders that come next need them. Shares are not waited for: a file
// server that starts slowly must not keep another job's guest suspended,
// and guests wait for their own.
func (a *Agent) match(ctx context.Context) {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.mu.Lock()
	wanted, joined := a.wanted, a.joined
	a.mu.Unlock()
	if wanted == nil {
		return
	}
	if joined != wanted {
		ctx, cancel := context.WithTimeout(ctx, applyLimit)
		defer cancel()
		err := a.Overlay.Apply(ctx, wanted.Networks)
		a.trouble("making the jobs' networks", err)
		if err == nil {
			a.mu.Lock()
			a.joined = wanted
			a.mu.Unlock()
		}
	}
	a.serve()
}

// serve makes the shares match in the background, one time after another. One
// that fails is tried again with the next match.
func (a *Agent) serve() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.serving || a.served == a.wanted {
		return
	}
	a.serving = true
	a.runs.Go(func() {
		for again := true; again; {
			again = a.serveOnce()
		}
	})
}

// serveOnce reports whether something else is wanted by now.
func (a *Agent) serveOnce() (again bool) {
	a.mu.Lock()
	wanted := a.wanted
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.ctx, applyLimit)
	defer cancel()
	err := a.Shares.Apply(ctx, wanted.Networks)
	a.trouble("serving the jobs' files", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.served = wanted
	}
	again = a.wanted != wanted && a.ctx.Err() == nil
	a.serving = again
	return again
}

// sweep removes the guests that are on this host but not wanted. What would
// make them more is cancelled; anything else that is being done to them is
// waited for. They get no time to shut down: whoever
// owned them has given them up.
func (a *Agent) sweep() {
	a.mu.Lock()
	if a.wanted == nil {
		a.mu.Unlock()
		return
	}
	extra := map[fleet.GuestID]fleet.Kind{}
	for g, p := range a.present {
		if !slices.Contains(a.wanted.Guests, g) {
			extra[g] = p.kind
		}
	}
	a.mu.Unlock()
	for g, kind := range extra {
		s, err := a.slotOf(g)
		if err != nil {
			a.trouble(removing+string(g), err)
			continue
		}
		a.mu.Lock()
		if s.last == nil || s.last.over() || grows(s.last.task.Order.Verb) {
			if a.troubles[removing+string(g)] == "" {
				a.Log.Info("removing a guest that is not wanted here", "guest", g)
			}
			a.beginLocked(s, &taskRun{silent: true, task: fleet.Task{
				Order: fleet.Order{Verb: fleet.Stop, Host: a.Host, Guest: g}, Guest: fleet.Guest{ID: g, Kind: kind},
			}})
		}
		a.mu.Unlock()
	}
}

func grows(v fleet.Verb) bool { return v == fleet.Start || v == fleet.Receive || v == fleet.Copy }
