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

	turn    sync.Mutex
	servers map[fleet.JobID]*server
}

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
	s := &Shares{config: c, ended: make(chan struct{}), servers: map[fleet.JobID]*server{}}
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
		s.follow(v)
	}
	return s, nil
}

// jobName is what a job's ID must look like to be a folder's name.
var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$`)

// Apply serves every network's share and stops serving all others. A network
// with a share must have been made before. After an error what could be done
// is done, and a later Apply does the rest.
func (s *Shares) Apply(ctx context.Context, networks []fleet.Network) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	var wrong []error
	wanted := map[fleet.JobID]bool{}
	for _, n := range networks {
		if n.Share == nil {
			continue
		}
		if !jobName.MatchString(string(n.Job)) {
			wrong = append(wrong, fmt.Errorf("a job cannot be called %q", n.Job))
			continue
		}
		wanted[n.Job] = true
		if err := s.serve(ctx, n); err != nil {
			wrong = append(wrong, fmt.Errorf("serving the files of job %s: %w", n.Job, err))
		}
	}
	for job, v := range s.servers {
		if wanted[job] {
			continue
		}
		if err := v.remove(); err != nil {
			wrong = append(wrong, fmt.Errorf("ending the file server of job %s: %w", job, err))
			continue
		}
		delete(s.servers, job)
	}
	return errors.Join(wrong...)
}

func (s *Shares) serve(ctx context.Context, n fleet.Network) error {
	v := s.servers[n.Job]
	if v == nil {
		folder, err := filepath.Abs(filepath.Join(s.config.Run, "shares", string(n.Job)))
		if err != nil {
			return err
		}
		v = newServer(n.Job, folder, s.config.Program)
		s.servers[n.Job] = v
	}
	started, err := v.ensure(ctx, n)
	if started {
		s.follow(v)
	}
	return err
}

// follow starts the server again whenever it dies while it is wanted.
func (s *Shares) follow(v *server) {
	p := v.process
	if p == nil {
		return
	}
	v.followed = p
	s.watch.Go(func() {
		select {
		case <-p.ended():
		case <-s.ended:
			return
		}
		for {
			s.turn.Lock()
			if v.followed != p || s.servers[v.job] != v {
				s.turn.Unlock()
				return // ended on purpose, or started anew and followed by another
			}
			pause := v.pause(time.Now())
			if pause == 0 {
				err := v.again()
				if err == nil {
					s.follow(v)
				}
				v.note(time.Now(), err)
			}
			s.turn.Unlock()
			select {
			case <-time.After(max(pause, shortestPause)):
			case <-s.ended:
				return
			}
		}
	})
}

// Troubles says in a person's words what went wrong with the servers lately.
func (s *Shares) Troubles() []string {
	s.turn.Lock()
	defer s.turn.Unlock()
	var lines []string
	for _, v := range s.servers {
		if line := v.trouble(time.Now()); line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// Close leaves all servers running, for whoever opens the folder next.
func (s *Shares) Close() error {
	close(s.ended)
	s.watch.Wait()
	s.turn.Lock()
	defer s.turn.Unlock()
	for _, v := range s.servers {
		v.forget()
	}
	return nil
}
