package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"syscall"

	"pagurus/act/endnotice"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/monitor"
)

// ownerFile keeps the owner's policy, ownerLocalFile what the owner said at the machine, and ownerSocket is where.
const (
	ownerFile      = "owner.json"
	ownerLocalFile = "owner-local.json"
	ownerSocket    = "owner.sock"
)

// slurmSignals are what Slurm says to an agent in a job of it, and what the agent then does.
type slurmSignals struct {
	got  chan os.Signal
	over func()
}

// bySlurm has the signals if the agent looks for notices of Slurm; there is one agent in a process.
var bySlurm slurmSignals

// until returns a context that ends when the agent is told to end. In a job of Slurm SIGTERM is a notice: the agent ends when the host is empty.
func until(ctx context.Context, f *roles.Agent) (context.Context, context.CancelFunc) {
	if !slices.Contains(f.Notices, fleet.SlurmNotice) || os.Getenv("SLURM_JOB_ID") == "" {
		return roles.Until(ctx)
	}
	bySlurm.got = make(chan os.Signal, 4)
	signal.Notify(bySlurm.got, syscall.SIGTERM, syscall.SIGUSR1)
	ctx, bySlurm.over = context.WithCancel(ctx)
	return signal.NotifyContext(ctx, os.Interrupt)
}

// watchNotices makes what looks for notices that this host goes away.
func (h *host) watchNotices(log *slog.Logger) *monitor.Notices {
	if len(h.flags.Notices) == 0 {
		return nil
	}
	var sources []monitor.NoticeSource
	for _, s := range endnotice.Open(endnotice.Config{Kinds: h.flags.Notices, Signals: bySlurm.got, Over: bySlurm.over}) {
		sources = append(sources, source{s})
	}
	return monitor.NewNotices(h.flags.Notices, sources, log)
}

// source is a source of notices as the monitor wants it.
type source struct{ endnotice.Source }

// Watch looks until ctx ends.
func (s source) Watch(ctx context.Context, tell func([]fleet.EndNotice, error), empty func() bool) {
	s.Source.Watch(ctx, tell, empty)
}

// owns reports whether a user of this machine is one of its owners. Names are looked up each time, since they may come from a server that is away.
func (h *host) owns(uid uint32) bool {
	number := strconv.FormatUint(uint64(uid), 10)
	return slices.ContainsFunc(h.flags.Owners, func(word string) bool {
		if word == number {
			return true
		}
		u, err := user.Lookup(word)
		return err == nil && u.Uid == number
	})
}
