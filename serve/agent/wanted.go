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

// applyLimit ends an attempt to match the host's networks; normally it takes milliseconds.
const applyLimit = 30 * time.Second

// removing begins the subject of the trouble with a guest that cannot be removed.
const removing = "removing guest "

// errOtherCluster ends a session with another cluster's controller.
var errOtherCluster = errors.New("the controller is of another cluster")

// want makes the host match the controller's Wanted. A session's first Wanted always counts:
// a controller whose store was restored from a backup counts revisions from there. An error
// means that the agent must not obey this controller.
func (a *Agent) want(w fleet.Wanted, first bool) error {
	if err := a.belong(w.Cluster); err != nil {
		return err
	}
	a.mu.Lock()
	if !first && a.wanted != nil && w.Revision < a.wanted.Revision {
		a.Log.Warn("ignored an older Wanted", "revision", w.Revision, "have", a.wanted.Revision)
		a.mu.Unlock()
		return nil
	}
	a.wanted = &w
	a.mu.Unlock()
	// Before the networks, which may take long: the owner comes first.
	a.trouble("the host's owner", a.Owner.Agree(w.Policy))
	a.Isolation.Want(w.IsolatedCPUs)
	a.match(a.ctx) // to its end, even if the session ends meanwhile
	a.sweep()
	a.keepClones()
	return nil
}

// belong makes this host a member of the first cluster that it hears from, for as long as
// its run folder exists.
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

// match makes the wanted networks and shares. A failure is reported as trouble and tried
// again about once a second; orders that need the missing part fail by themselves. It waits
// for the networks, because the next orders need them. It does not wait for shares: a slow
// file server must not keep another job's guest suspended, and guests wait for their own.
func (a *Agent) match(ctx context.Context) {
	a.applying.Lock()
	defer a.applying.Unlock()
	a.mu.Lock()
	wanted, joined := a.wanted, a.joined
	a.mu.Unlock()
	if wanted == nil {
		return
	}
	if joined != wanted || a.Encryption != nil && !a.Encryption.Holds() {
		ctx, cancel := context.WithTimeout(ctx, applyLimit)
		defer cancel()
		if a.Clients != nil { // before their networks go
			a.trouble("unmounting the jobs' files", a.Clients.KeepClients(ctx, wanted.Networks))
		}
		err := a.encrypt(ctx, wanted.WireGuard)
		a.trouble("encrypting what goes to other hosts", err)
		if err == nil { // the networks would pass in clear, or nowhere
			err = a.Overlay.Apply(ctx, wanted.Networks)
			a.trouble("making the jobs' networks", err)
		}
		if err == nil {
			a.mu.Lock()
			a.joined = wanted
			a.mu.Unlock()
		}
	}
	a.serve()
	if a.Gateways != nil && a.holds(wanted) {
		a.trouble("leading jobs to the Internet", a.Gateways.Apply(ctx, wanted.Networks))
	}
}

// holds reports whether the networks are made as is wanted.
func (a *Agent) holds(wanted *fleet.Wanted) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.joined == wanted
}

func (a *Agent) encrypt(ctx context.Context, w *fleet.WireGuard) error {
	switch {
	case a.Encryption != nil:
		return a.Encryption.Encrypt(ctx, w)
	case w != nil:
		return errors.New("this agent cannot encrypt")
	}
	return nil
}

// serve makes the shares match in the background. A failure is tried again with the next
// match.
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

// serveOnce reports whether wanted has changed meanwhile.
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

// sweep removes guests that are on this host, or come to it, but are not wanted. It cancels
// start, receive and copy, and waits for any other task. The guests get no time to shut down, since the
// controller has given them up.
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
	for g, s := range a.slots { // an order that hangs may be carried out long after its guest was given up
		if w := s.last; w != nil && !w.over() && grows(w.task.Order.Verb) && !slices.Contains(a.wanted.Guests, g) {
			extra[g] = w.task.Guest.Kind
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
		if slices.Contains(a.wanted.Guests, g) { // since a moment ago
			a.mu.Unlock()
			continue
		}
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

func grows(v fleet.Verb) bool {
	return v == fleet.Start || v == fleet.Receive || v == fleet.Copy || v == fleet.Restore
}
