// Package share serves a job's directories to its guests. Each job has one NFSv4 server
// (nfs-ganesha) in a network namespace of its own, which has only the job's network, and in a jail, which
// has only the job's directories. The server outlives this process. The next process finds it, and restarts it when it dies. File
// handles stay valid all the time, because they are those of the file system, with a signature (package handle).
//
// The package must not know more of a job than its directories and its user. It does not know
// how the job's network is made: it finds its end of a link pair. The tests run a real server
// with real clients, in namespaces that stand for hosts.
package share

import (
	"cmp"
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

// Config says where servers keep their files.
type Config struct {
	Run     string // folder for state that lasts until the next boot; servers use its shares/JOB
	State   string // folder for what lasts longer; empty: Run
	Shim    string // path of pagurus-shim, which jails servers
	Program string // the server; empty: ganesha.nfsd of PATH
}

// Shares has the file servers of all jobs on this host.
type Shares struct {
	config Config
	secret []byte        // from which the jobs' keys of file handles follow
	ended  chan struct{} // closed by Close
	watch  sync.WaitGroup

	// lock has capacity one: its holder may use and change the servers, and may wait for
	// one to start or end.
	lock    chan struct{}
	servers map[fleet.JobID]*server // changed by the holder of lock, while it also holds brief

	brief  sync.Mutex                    // never held during a wait
	wanted map[fleet.JobID]fleet.Network // by the latest Apply
}

var (
	errClosed = errors.New("closed")
	// errSuperseded wraps context.Canceled, by which callers recognise it.
	errSuperseded = fmt.Errorf("other networks are wanted by now: %w", context.Canceled)
)

// Open finds the running servers.
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
	secret, err := loadSecret(filepath.Join(cmp.Or(c.State, c.Run), SecretFile))
	if err != nil {
		return nil, err
	}
	s := &Shares{config: c, secret: secret, ended: make(chan struct{}), lock: make(chan struct{}, 1),
		servers: map[fleet.JobID]*server{}}
	found, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("looking for jobs' files served before: %w", err)
	}
	for _, f := range found {
		v := s.newServer(fleet.JobID(f.Name()), filepath.Join(folder, f.Name()))
		if err := v.adopt(); err != nil {
			s.Close()
			return nil, err
		}
		s.servers[v.job] = v
		s.superviseServer(v)
	}
	return s, nil
}

// jobName matches job IDs that can be a folder's name.
var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$`)

// Apply serves every network's share and stops all other servers. A network with a share must
// exist. After an error everything possible is done, and a later Apply does the rest.
//
// Calls may overlap. One works at a time, and the latest call counts. An earlier call does
// only what the latest one wants too. If that is not all that it was asked for, its error is a
// context.Canceled.
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
	if err := s.forgetMarks(wanted); err != nil {
		wrong = append(wrong, err)
	}
	if superseded {
		wrong = append(wrong, errSuperseded)
	}
	return errors.Join(wrong...)
}

// sharesOf returns the networks with shares by job, and errors for invalid ones.
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

func sameShare(a, b fleet.Network) bool { return a.Subnet == b.Subnet && a.Share.Equal(*b.Share) }

// enter waits for the lock.
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

// set changes a job's server; nil: none.
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
		v = s.newServer(n.Job, folder)
		s.set(n.Job, v)
	}
	started, err := v.ensure(ctx, n)
	v.history.applied(err)
	if started {
		s.superviseServer(v)
	}
	return err
}

// superviseServer restarts the server whenever it dies while it is wanted, and limits its
// log.
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
				return // ended on purpose, or restarted and supervised elsewhere
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

// outlive returns true when the process has ended, or false after Close.
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

// Troubles describes recent failures of the servers, for people to read. It does not wait for
// servers.
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

// Failure returns why a job's files are not served after more than one try. It returns nil if
// they are served, or may be soon. It does not wait for servers.
func (s *Shares) Failure(job fleet.JobID) error {
	s.brief.Lock()
	v := s.servers[job]
	s.brief.Unlock()
	if v == nil {
		return nil
	}
	return v.history.verdict()
}

// Close leaves all servers running, for the next Open to find.
func (s *Shares) Close() error {
	close(s.ended)
	s.lock <- struct{}{} // for good: waits for a running Apply and prevents others
	s.watch.Wait()
	for _, v := range s.servers {
		v.forget()
	}
	return nil
}
