package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"pagurus/act/machine"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// What a hostile crowd does at once, and beside whom.
const (
	hostileRequests = 1500 // of one user, always under way
	hostileJobs     = 5000 // submitted, cancelled and removed by root, who has no quota
	hostileWorkers  = 8
	hostileReaders  = 250 // of another user, who ask for the snapshot and do not read it
	hostileHosts    = 20  // whose leases are renewed each second
	hostileRounds   = 3
	hostileEnv      = 40 << 10

	hostileLook = time.Second
	peakEvery   = 100 * time.Millisecond
	storeMiB    = 512
)

// hostile is the cluster around a hostile crowd.
type hostile struct {
	*experiments
	controller int
	address    string
	root       *wire.Client
	look       []string // flags by which an honest user calls
	flood      *http.Client
	readers    *tls.Config
	facts      fleet.Facts // of the crowd's hosts
	machine    string      // with the jobs' files
}

// crowdHostile measures what others wait for, and what the controller takes, while a user asks for whatever they can.
func (b *experiments) crowdHostile(ctx context.Context) error {
	h := hostile{experiments: b}
	if err := h.gather(ctx); err != nil {
		return err
	}
	err := b.Rounds(ctx, min(b.Repeat, hostileRounds), nil, bench.Arm{Name: "crowd-hostile", Measure: func(ctx context.Context) (map[string]float64, error) {
		return h.once(ctx)
	}})
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, says string
		limit      float64
	}{
		{"lease_s", "the longest until a lease was renewed beside a hostile user, s", 2},
		{"ls_s", "the longest host ls of another user, s", 1},
		{"controller_mib", "the controller's memory at its most, MiB", 1024},
		{"store_mib", "the store's file at its most, MiB", storeMiB / 2},
	} {
		if err := b.Mean(f.says, "crowd-hostile_"+f.name, f.limit); err != nil {
			return err
		}
	}
	return nil
}

// gather has the users and hosts join. The lab's own host takes no guests, so that jobs wait.
func (h *hostile) gather(ctx context.Context) error {
	s, err := h.Snapshot(ctx)
	if err != nil {
		return err
	}
	if h.machine, err = machine.ID(); err != nil {
		return err
	}
	status, err := h.Type(ctx, "lab", "status", "--json")
	if err != nil {
		return err
	}
	if h.controller, h.address, err = partOf([]byte(status), "controller"); err != nil {
		return err
	}
	if _, err := h.Type(ctx, "host", "drain", "host1"); err != nil {
		return err
	}
	if h.root, err = wire.Dial(wire.Config{Address: "unix:" + wire.DefaultSocket}); err != nil {
		return err
	}
	folders := map[string]string{}
	for i, user := range []string{"eve", "mallory", "ada"} {
		if _, err := h.root.Ask(ctx, fleet.Request{Verb: fleet.SetUser, User: &fleet.User{ID: fleet.UserID(user), Role: fleet.UserRole, UID: uint32(3001 + i), GID: 3000}}); err != nil {
			return err
		}
		if folders[user], err = h.login(ctx, user); err != nil {
			return err
		}
	}
	h.look = []string{"--controller", h.address, "--credentials", folders["ada"], "host", "ls"}
	eve, err1 := identity.Load(folders["eve"])
	mallory, err2 := identity.Load(folders["mallory"])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	h.readers = mallory.Client()
	h.flood = &http.Client{Transport: &http.Transport{TLSClientConfig: eve.Client(), MaxIdleConnsPerHost: hostileRequests, DialContext: h.dial}}
	h.facts = s.Hosts["host1"].Facts
	h.facts.Abilities, h.facts.WireGuard, h.facts.Guests, h.facts.Vault = nil, nil, nil, nil // nothing is placed there
	return nil
}

// attach has a host of the crowd on the controller's socket, as a lab's agents are. The first has the address from which eve calls, and so her files.
func (h *hostile) attach(ctx context.Context, n int) (crowdMember, error) {
	facts := h.facts
	facts.Machine = crowdMachine(n)
	facts.Address = fmt.Sprintf("198.18.%d.%d", 200+n/250, 1+n%250)
	if n == 0 {
		facts.Address = machine.Towards(h.address)
	}
	s, err := h.root.Attach(ctx, wire.Hello{Host: viewedHost(n), Facts: facts})
	return crowdMember{s, facts}, err
}

func crowdMachine(n int) string { return fmt.Sprintf("%032x", n+1) }

func (h *hostile) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", h.address)
}

// login gives a folder with a user's credentials.
func (h *hostile) login(ctx context.Context, user string) (string, error) {
	token, err := h.Type(ctx, "token", "create", "--role", "user", "--user", user)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(h.Dir, user)
	_, err = wire.Enrol(ctx, h.address, strings.TrimSpace(token), folder, wire.Joining{})
	return folder, err
}

// once has everybody act until all jobs have come and gone.
func (h *hostile) once(ctx context.Context) (map[string]float64, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	var answered, refused atomic.Int64
	for w := range hostileRequests {
		all.Go(func() { h.ask(ctx, w, &answered, &refused) })
	}
	for range hostileReaders {
		all.Go(func() { h.readSlowly(ctx) })
	}
	var leases, ls, mib, store peak
	seen, hosts := errgroup.WithContext(ctx)
	for n := range hostileHosts {
		seen.Go(func() error { return h.renew(hosts, n, &leases) })
	}
	seen.Go(func() error { return h.lookAgain(hosts, &ls) })
	seen.Go(func() error { return h.watchSize(hosts, &mib, &store) })
	if err := drive.Pause(ctx, 5*time.Second); err != nil { // all are there
		return nil, err
	}
	begun := time.Now()
	err := h.churn(ctx)
	took := time.Since(begun)
	stop()
	if e := seen.Wait(); e != nil && !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	all.Wait()
	return map[string]float64{
		"lease_s": leases.most(), "ls_s": ls.most(), "controller_mib": mib.most(), "store_mib": store.most(),
		"jobs_per_s": hostileJobs / took.Seconds(), "answered": float64(answered.Load()), "refused": float64(refused.Load()),
	}, err
}

// ask submits a job and cancels it, again and again, and does not wait when it is told to.
func (h *hostile) ask(ctx context.Context, worker int, answered, refused *atomic.Int64) {
	post := func(q fleet.Request) (a fleet.Answer, ok bool) {
		text, _ := json.Marshal(q)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+identity.ServerName+"/v1/ask", bytes.NewReader(text))
		if err != nil {
			return a, false
		}
		r.Header.Set("Pagurus-Protocol", strconv.Itoa(fleet.Protocol()))
		got, err := h.flood.Do(r)
		if err != nil {
			return a, false
		}
		defer got.Body.Close()
		text, _ = io.ReadAll(got.Body)
		if got.StatusCode != http.StatusOK {
			if refused.Add(1) == 1 {
				fmt.Fprintf(os.Stderr, "the first refusal: %s\n", bytes.TrimSpace(text))
			}
			return a, false
		}
		answered.Add(1)
		return a, json.Unmarshal(text, &a) == nil
	}
	for n := 0; ctx.Err() == nil; n++ {
		if a, ok := post(fleet.Request{Verb: fleet.Submit, ID: fleet.RequestID(fmt.Sprintf("eve-%d-%d-%d", worker, n, time.Now().UnixNano())), Spec: h.spec(crowdMachine(0), 100)}); ok {
			post(fleet.Request{Verb: fleet.Cancel, Job: a.Job})
			post(fleet.Request{Verb: fleet.RemoveJob, Job: a.Job})
		}
	}
}

// spec is a job with files of a machine, for which there is no host.
func (h *hostile) spec(machine string, env int) *fleet.JobSpec {
	return &fleet.JobSpec{
		Args: []string{"./a.out"}, Env: []string{"A=" + strings.Repeat("x", env)}, Dir: h.Dir, Export: h.Dir, Ranks: 1, Guests: 1, Image: "openmpi", Machine: machine,
		Need: fleet.Resources{CPUs: 1, MemoryBytes: 256 << 20},
	}
}

// readSlowly asks for the snapshot, and reads a byte a second.
func (h *hostile) readSlowly(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := h.dial(ctx, "tcp", "")
		if err != nil {
			continue
		}
		secured := tls.Client(conn, h.readers)
		end := context.AfterFunc(ctx, func() { _ = conn.Close() })
		_, err = fmt.Fprintf(secured, "GET /v1/snapshot HTTP/1.1\r\nHost: x\r\nPagurus-Protocol: %d\r\n\r\n", fleet.Protocol())
		for one := make([]byte, 1); err == nil; { // until it is cut off
			_, err = secured.Read(one)
			_ = drive.Pause(ctx, time.Second)
		}
		end()
		_ = conn.Close()
	}
}

// churn submits, cancels and removes jobs with large environments as root.
func (h *hostile) churn(ctx context.Context) error {
	workers, within := errgroup.WithContext(ctx)
	for w := range hostileWorkers {
		workers.Go(func() error {
			for n := range hostileJobs / hostileWorkers {
				a, err := h.root.Ask(within, fleet.Request{Verb: fleet.Submit, ID: fleet.RequestID(fmt.Sprintf("root-%d-%d-%d", w, n, time.Now().UnixNano())), Spec: h.spec(h.machine, hostileEnv)})
				if err == nil {
					_, err = h.root.Ask(within, fleet.Request{Verb: fleet.Cancel, Job: a.Job})
				}
				if err == nil {
					_, err = h.root.Ask(within, fleet.Request{Verb: fleet.RemoveJob, Job: a.Job})
				}
				if err != nil {
					return fmt.Errorf("job %d of worker %d: %w", n, w, err)
				}
			}
			return nil
		})
	}
	return workers.Wait()
}

// lookAgain types host ls as an honest user.
func (h *hostile) lookAgain(ctx context.Context, took *peak) error {
	for ; ctx.Err() == nil; _ = drive.Pause(ctx, hostileLook) {
		begun := time.Now()
		out, err := exec.CommandContext(ctx, h.Program, h.look...).CombinedOutput()
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("host ls of another user: %w: %s", err, out)
		}
		took.noteValue(time.Since(begun).Seconds())
	}
	return ctx.Err()
}

// watchSize looks at the controller's memory and at its store's file.
func (h *hostile) watchSize(ctx context.Context, mib, store *peak) error {
	for ; ctx.Err() == nil; _ = drive.Pause(ctx, peakEvery) {
		memory, err1 := largest(h.controller)
		size, err2 := storeSize(h.controller)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		mib.noteValue(memory)
		store.noteValue(size)
	}
	return ctx.Err()
}

// storeSize is how long the store's file is that a controller has open, in MiB.
func storeSize(controller int) (float64, error) {
	folder := fmt.Sprintf("/proc/%d/fd", controller)
	open, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	for _, fd := range open {
		at := filepath.Join(folder, fd.Name())
		if name, err := os.Readlink(at); err == nil && strings.HasSuffix(name, "/member/snap/db") {
			is, err := os.Stat(at)
			if err != nil {
				return 0, err
			}
			return float64(is.Size()) / (1 << 20), nil
		}
	}
	return 0, nil // it is being made small
}

// renew asks for the lease each second, and notes after how long it is renewed.
func (h *hostile) renew(ctx context.Context, n int, took *peak) error {
	m, err := h.attach(ctx, n)
	if err != nil {
		return err
	}
	defer m.session.Close()
	facts, asked, renewed := m.facts, time.Now(), make(chan int64, 16)
	go func() {
		defer close(renewed)
		for d, err := m.session.Receive(ctx); err == nil; d, err = m.session.Receive(ctx) {
			if d.Lease != nil {
				renewed <- d.Lease.Asked
			}
		}
	}()
	for nonce := asked.UnixNano(); ; nonce++ {
		facts.Lease = fleet.Lease{Length: fleet.ShortestLease, Held: fleet.ShortestLease, Asked: nonce}
		f := facts
		asked = time.Now()
		if err := m.session.Send(ctx, wire.Up{Facts: &f}); err != nil {
			return errors.Join(ctx.Err(), err)
		}
		is := false
		for got := range renewed {
			if is = got == nonce; is {
				break
			}
		}
		took.noteValue(time.Since(asked).Seconds()) // also of one that is awaited at the end: it took that long at the least
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !is {
			return errors.New("the controller has ended a host's session")
		}
		if err := drive.Pause(ctx, crowdReports); err != nil {
			return err
		}
	}
}

// peak is the most of what was noted.
type peak struct {
	mu sync.Mutex
	of float64
}

func (p *peak) noteValue(v float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of = max(p.of, v)
}

func (p *peak) most() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of
}
