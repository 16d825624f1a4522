package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pagurus/act/container"
	"pagurus/act/machine"
	"pagurus/act/share"
	"pagurus/decide/placement"
	"pagurus/fleet"
)

// files opens a job's directories for its containers, each in the way that placement found.
// In place and where hosts share it anyway it is opened with the user's permissions.
func (h *host) files(ctx context.Context, t fleet.Task) (all []container.Files, err error) {
	defer func() {
		if err != nil {
			for _, f := range all {
				f.Dir.Close()
			}
			all = nil
		}
	}()
	for _, d := range t.Job.Spec.Directories() {
		f, err := h.openDirectory(ctx, t, d)
		if err != nil {
			return all, err
		}
		all = append(all, f)
	}
	return all, nil
}

func (h *host) openDirectory(ctx context.Context, t fleet.Task, d fleet.Directory) (container.Files, error) {
	f := container.Files{At: d.Path, ReadOnly: d.ReadOnly}
	j := t.Job.Spec
	way, why := placement.Reach(d, j.Machine, h.facts())
	var err error
	switch way {
	case placement.Mounted:
		return h.mountDirectory(ctx, t, f)
	case placement.NoWay:
		return f, fmt.Errorf("host %s %s", h.flags.Name, why)
	}
	if f.Dir, err = share.Enter(ctx, fleet.Share{Export: d.Path, UID: j.UID, GID: j.GID}); err != nil {
		return f, err
	}
	source, kind, err := machine.Source(d.Path)
	if err == nil && way == placement.Shared && strings.TrimSuffix(source, "/") != strings.TrimSuffix(d.Source, "/") {
		if h.noClient == "" {
			f.Dir.Close()
			return h.mountDirectory(ctx, t, f)
		}
		err = fmt.Errorf("%s is another directory here (%s) than where the job was submitted (%s): run it --on other hosts, or name another directory", d.Path, said(source, kind), d.Source)
	}
	if err != nil {
		f.Dir.Close()
		return f, err
	}
	f.Remote, f.Identity = !strings.HasPrefix(source, "kernel "), source
	return f, nil
}

// jobServer is the identity of what the job's own file server serves.
const jobServer = "the job's server"

// mountDirectory has this host's kernel mount a directory from the job's file server.
func (h *host) mountDirectory(ctx context.Context, t fleet.Task, f container.Files) (_ container.Files, err error) {
	f.Remote, f.Identity = true, jobServer
	f.Dir, err = h.clients.Open(ctx, t.Job.ID, f.At)
	return f, err
}

func said(source, kind string) string {
	if source == "" {
		return "of type " + kind
	}
	return source
}

// sharedEvery is how often the shared directories are looked at: they may be mounted late.
const sharedEvery = 30 * time.Second

// sharedWatch keeps what the directories are that hosts share. A network file system may not
// answer, so no caller waits for it.
type sharedWatch struct {
	dirs []string
	stop chan struct{}

	mu       sync.Mutex
	found    []fleet.Directory
	troubles []string
}

// watchShared begins to look at directories. It waits a moment for the first look.
func watchShared(dirs []string) *sharedWatch {
	w := &sharedWatch{dirs: dirs, stop: make(chan struct{})}
	if len(dirs) == 0 {
		return w
	}
	for _, dir := range dirs {
		w.troubles = append(w.troubles, fmt.Sprintf("--shared %s: its file system does not answer", dir))
	}
	first := make(chan struct{})
	go func() {
		w.find()
		close(first)
		for {
			select {
			case <-time.After(sharedEvery):
				w.find()
			case <-w.stop:
				return
			}
		}
	}()
	select {
	case <-first:
	case <-time.After(2 * time.Second):
	}
	return w
}

// find looks at all directories once.
func (w *sharedWatch) find() {
	var found []fleet.Directory
	var troubles []string
	for _, dir := range w.dirs {
		source, kind, err := machine.Source(dir)
		switch {
		case err != nil:
			troubles = append(troubles, fmt.Sprintf("--shared %s: %v", dir, err))
		case source == "" && kind != machine.OnDemand:
			troubles = append(troubles, fmt.Sprintf("--shared %s: it cannot be told whether another host's is the same (%s); containers get it from the job's file server", dir, kind))
		default:
			found = append(found, fleet.Directory{Path: dir, Source: source})
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found, w.troubles = found, troubles
}

// last is what was found, and what is wrong, for people.
func (w *sharedWatch) last() ([]fleet.Directory, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.found), slices.Clone(w.troubles)
}

func (w *sharedWatch) close() { close(w.stop) }
