// Package share serves the directory a job was submitted from to the job's
// guests: for each job one NFSv4 server (nfs-ganesha) in a network namespace
// of its own, whose only link is the job's network. The server outlives this
// process, is found again by the next one and started again when it dies; file
// handles stay valid through all of that, since they are the file system's own.
//
// It must not know jobs beyond their directory and user, nor how the job's
// network is made: it finds its end of a pair of links and takes it. Its tests
// run a real server against real clients, in namespaces that stand for hosts.
package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
)

// Config says where servers keep what they need.
type Config struct {
	Run     string // folder for what is gone after a reboot; shares live in its shares/JOB
	Program string // the server; empty: ganesha.nfsd of PATH
}

// Shares is all jobs' files that this host serves.
type Shares struct {
	config Config
	ended  chan struct{} // closed by Close
	watch  sync.WaitGroup

	// lock has room for one: whoever is in it may use and change the servers,
	// and may take as long as a server takes to start or to end.
	lock    chan struct{}
	servers map[fleet.JobID]*server // changed by who has the turn and holds brief

	brief  sync.Mutex                    // never held while waiting for anything
	wanted map[fleet.JobID]fleet.Network // by the last Apply called
}

var (
	errClosed = errors.New("closed")
	// errSuperseded can be told by its cause.
	errSuperseded = fmt.Errorf("other networks are wanted by now: %w", context.Canceled)
)

// Open finds the servers that run already.
func Open(c Config) (*Shares, error) {
	if c.Program == "" {
		c.Program = "ganesha.nfsd"
	}
	folder := filepath.Join(c.Run, "shares")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder for jobs' files: %w", err)
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	s := &Shares{config: c, ended: make(chan struct{}), lock: make(chan struct{}, 1),
		servers: map[fleet.JobID]*server{}}
	found, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("looking for jobs' files served before: %w", err)
	}
	for _, f := range found {
		v := newServer(fleet.JobID(f.Name()), filepath.Join(folder, f.Name()), c.Program)
		if err := v.adopt(); err != nil {
			s.Close()
			return nil, err
		}
		s.servers[v.job] = v
		s.superviseServer(v)
	}
	return s, nil
}

// jobName is what a job's ID must look like to be a folder's name.
var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$`)

// Apply serves every network's share and stops serving all others. A network
// with a share must have been made before. After an error what could be done
// is done, and a later Apply does the rest.
//
// It may be called while another call is under way: one works at a time, the
// last one called counts, and an earlier one does only what that wants too. If
// that was not all of its own, its error is a context.Canceled.
func (s *Shares) Apply(ctx context.Context, networks []fleet.Network) error {
	wanted, wrong := sharesOf(networks)
	s.want(wanted)
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	superseded := false
	for _, job := range slices.Sorted(maps.Keys(wanted)) {
		n := wanted[job]
		if now, ok := s.wantedNow(job); !ok || !sameShare(now, n) {
			superseded = true
			continue
		}
		if err := s.serve(ctx, n); err != nil {
			wrong = append(wrong, fmt.Errorf("serving the files of job %s: %w", job, err))
		}
	}
	for job, v := range s.servers {
		if _, ok := wanted[job]; ok {
			continue
		}
		if _, ok := s.wantedNow(job); ok {
			superseded = true
			continue
		}
		if err := v.remove(); err != nil {
			wrong = append(wrong, fmt.Errorf("ending the file server of job %s: %w", job, err))
			continue
		}
		s.set(job, nil)
	}
	if superseded {
		wrong = append(wrong, errSuperseded)
	}
	return errors.Join(wrong...)
}

// sharesOf gives the networks with shares by their jobs, and what cannot be.
func sharesOf(networks []fleet.Network) (wanted map[fleet.JobID]fleet.Network, wrong []error) {
	wanted = map[fleet.JobID]fleet.Network{}
	for _, n := range networks {
		switch {
		case n.Share == nil:
		case !jobName.MatchString(string(n.Job)):
			wrong = append(wrong, fmt.Errorf("a job cannot be called %q", n.Job))
		default:
			wanted[n.Job] = n
		}
	}
	return wanted, wrong
}

func sameShare(a, b fleet.Network) bool { return a.Subnet == b.Subnet && *a.Share == *b.Share }

// enter waits for the turn.
func (s *Shares) enter(ctx context.Context) error {
	select {
	case <-s.ended:
		return errClosed
	case <-ctx.Done():
		return fmt.Errorf("waiting for other file servers to start or end: %w", ctx.Err())
	case s.lock <- struct{}{}:
	}
	select {
	case <-s.ended:
		s.leave()
		return errClosed
	default:
		return nil
	}
}

func (s *Shares) leave() { <-s.lock }

func (s *Shares) want(wanted map[fleet.JobID]fleet.Network) {
	s.brief.Lock()
	defer s.brief.Unlock()
	s.wanted = wanted
}

func (s *Shares) wantedNow(job fleet.JobID) (fleet.Network, bool) {
	s.brief.Lock()
	defer s.brief.Unlock()
	n, ok := s.wanted[job]
	return n, ok
}

// set changes which server is the job's; nil: none.
func (s *Shares) set(job fleet.JobID, v *server) {
	s.brief.Lock()
	defer s.brief.Unlock()
	if v == nil {
		delete(s.servers, job)
		return
	}
	s.servers[job] = v
}

func (s *Shares) serve(ctx context.Context, n fleet.Network) error {
	v := s.servers[n.Job]
	if v == nil {
		folder, err := filepath.Abs(filepath.Join(s.config.Run, "shares", string(n.Job)))
		if err != nil {
			return err
		}
		v = newServer(n.Job, folder, s.config.Program)
		s.set(n.Job, v)
	}
	started, err := v.ensure(ctx, n)
	v.history.applied(err)
	if started {
		s.superviseServer(v)
	}
	return err
}

// superviseServer starts the server again whenever it dies while it is wanted, and keeps
// its log short.
func (s *Shares) superviseServer(v *server) {
	p := v.process
	if p == nil {
		return
	}
	v.followed = p
	s.watch.Go(func() {
		if !s.outlive(v, p) {
			return
		}
		for {
			if s.enter(context.Background()) != nil {
				return
			}
			if v.followed != p || s.servers[v.job] != v {
				s.leave()
				return // ended on purpose, or started again and followed by another
			}
			pause := v.history.pause(time.Now())
			if pause == 0 {
				v.history.died(time.Now())
				err := v.again()
				v.history.tried(err)
				if err == nil {
					s.superviseServer(v)
				}
			}
			s.leave()
			select {
			case <-time.After(max(pause, shortestPause)):
			case <-s.ended:
				return
			}
		}
	})
}

// outlive returns when the process has ended, or false after Close.
func (s *Shares) outlive(v *server, p *process) bool {
	look := time.NewTicker(logInterval)
	defer look.Stop()
	for {
		select {
		case <-p.ended():
			return true
		case <-s.ended:
			return false
		case <-look.C:
			v.boundLog()
		}
	}
}

// Troubles says in a person's words what went wrong with the servers lately. It
// waits for no server.
func (s *Shares) Troubles() []string {
	s.brief.Lock()
	defer s.brief.Unlock()
	var lines []string
	for _, v := range s.servers {
		if line := v.history.trouble(v.job, time.Now()); line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// Failure says why a job's files are not served, once that was tried more than
// once; nil: they are, or may be in a moment. It waits for no server.
func (s *Shares) Failure(job fleet.JobID) error {
	s.brief.Lock()
	v := s.servers[job]
	s.brief.Unlock()
	if v == nil {
		return nil
	}
	return v.history.verdict()
}

// Close leaves all servers running, for whoever opens the folder next.
func (s *Shares) Close() error {
	close(s.ended)
	s.lock <- struct{}{} // for good: an Apply under way ends first, no other begins
	s.watch.Wait()
	for _, v := range s.servers {
		v.forget()
	}
	return nil
}
