// Package siterelay has this host relay what two others encrypt for each other, where they do not reach each other
// directly. A process of its own does it, which outlives this one.
//
// It must not know why two hosts do not reach each other. The relay can read nothing of what it passes. Its tests run the
// process, and attack it.
package siterelay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// The files in the folder Run: which process relays, what it should do, and what it said.
const (
	processFile = "relay.process"
	ordersFile  = "relay.json"
	LogFile     = "relay.log"
)

// Config says what a relay may do.
type Config struct {
	Run            string                            // absolute folder for files that outlive the process, but not a reboot
	Program        string                            // becomes the relay when it is started with the name of one of Shims
	FirstPort      uint16                            // of fleet.MostRelayed
	BytesPerSecond int64                             // of all pairs together
	Secrets        func(key string) (Secrets, error) // with a host that has a public key
}

// Relay is this host's.
type Relay struct {
	config Config

	mu      sync.Mutex
	had     orders
	unasked map[fleet.RelayPair]time.Time // since when nobody wants it
}

// linger is how long a pair is relayed that is not asked for any more: a controller that has begun again does not know yet
// who needs what.
const linger = time.Minute

// Open finds what an earlier process has left, and changes nothing.
func Open(c Config) (*Relay, error) {
	r := &Relay{config: c, unasked: map[fleet.RelayPair]time.Time{}}
	if err := note.Load(r.file(ordersFile), &r.had); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading what this host relays: %w: remove the file, and it begins again", err)
	}
	return r, nil
}

func (r *Relay) file(name string) string { return filepath.Join(r.config.Run, name) }

// Apply has these pairs relayed. Those that stay notice nothing. It is called now and then, also without a change: then what
// nobody wants ends after a while, and a process that died is started again.
func (r *Relay) Apply(want []fleet.RelayPair, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	stay := r.stay(want, now)
	var errs []error
	for _, p := range want {
		if slices.ContainsFunc(stay, func(e each) bool { return e.RelayPair == p }) {
			continue
		}
		port, err := r.port(stay)
		if err != nil {
			errs = append(errs, err)
			break
		}
		stay = append(stay, each{RelayPair: p, Port: port})
	}
	for i := range stay {
		for j, key := range stay[i].Keys {
			s, err := r.config.Secrets(key)
			if err != nil { // the process refuses this pair, and relays for others
				errs = append(errs, fmt.Errorf("relaying for %s: %w", stay[i].Hosts[j], err))
			}
			stay[i].Secrets[j] = s
		}
	}
	return errors.Join(append(errs, r.make(stay))...)
}

// stay are the pairs that are relayed further.
func (r *Relay) stay(want []fleet.RelayPair, now time.Time) (stay []each) {
	for _, e := range r.had.Pairs {
		if e.Port < r.config.FirstPort || e.Port-r.config.FirstPort >= fleet.MostRelayed { // the ports were changed
			continue
		}
		switch since, waits := r.unasked[e.RelayPair]; {
		case slices.Contains(want, e.RelayPair):
			delete(r.unasked, e.RelayPair)
		case !waits:
			r.unasked[e.RelayPair] = now
		case now.Sub(since) > linger || slices.ContainsFunc(want, func(p fleet.RelayPair) bool { return p.Hosts == e.Hosts }): // with another key
			delete(r.unasked, e.RelayPair)
			continue
		}
		stay = append(stay, e)
	}
	return stay
}

// port is a free one.
func (r *Relay) port(taken []each) (uint16, error) {
	for i := range uint16(fleet.MostRelayed) {
		port := r.config.FirstPort + i
		if slices.ContainsFunc(taken, func(e each) bool { return e.Port == port }) {
			continue
		}
		if c, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(port)}); err == nil {
			return port, c.Close()
		}
	}
	return 0, fmt.Errorf("no UDP port from %d to %d is free to relay at: end what has them, or give this host others with --%s", r.config.FirstPort, r.config.FirstPort+fleet.MostRelayed-1, fleet.RelayPortFlag)
}

// make has the process do this. Without anything to do there is none.
func (r *Relay) make(pairs []each) error {
	p, err := r.process()
	if err != nil {
		return err
	}
	lives := !p.Gone()
	if len(pairs) == 0 {
		if !lives && len(r.had.Pairs) == 0 {
			return nil
		}
		return r.end(p)
	}
	want := orders{r.config.BytesPerSecond, pairs}
	if lives && reflect.DeepEqual(want, r.had) {
		return nil
	}
	if err := note.Replace(r.file(ordersFile), want); err != nil {
		return fmt.Errorf("noting what this host relays: %w", err)
	}
	r.had = want
	if !lives {
		return r.start()
	}
	switch err := unix.Kill(p.PID, reread); {
	case errors.Is(err, unix.ESRCH): // it has just died
		return r.start()
	case err != nil:
		return fmt.Errorf("telling the relay: %w", err)
	}
	return nil
}

func (r *Relay) process() (p host.Process, err error) {
	if err := note.Load(r.file(processFile), &p); err != nil && !errors.Is(err, os.ErrNotExist) {
		return p, fmt.Errorf("reading which process relays: %w", err)
	}
	return p, nil
}

func (r *Relay) start() error {
	_, _, err := host.Outliving{
		What: "the relay", Program: r.config.Program, Args: []string{processName, r.file(ordersFile)}, Log: r.file(LogFile), Note: r.file(processFile),
	}.Start()
	return err
}

// end ends the process, and forgets everything.
func (r *Relay) end(p host.Process) error {
	if err := p.End(); err != nil {
		return fmt.Errorf("ending the relay: %w", err)
	}
	r.had = orders{}
	clear(r.unasked)
	var errs []error
	for _, name := range []string{ordersFile, processFile, LogFile} {
		if err := os.Remove(r.file(name)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Remove ends the relay.
func (r *Relay) Remove() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.process()
	if err != nil {
		return err
	}
	return r.end(p)
}

// Ports are where this host relays.
func (r *Relay) Ports() (all []fleet.RelayPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.had.Pairs {
		all = append(all, fleet.RelayPort{Hosts: e.Hosts, Port: e.Port})
	}
	slices.SortFunc(all, func(a, b fleet.RelayPort) int { return slices.Compare(a.Hosts[:], b.Hosts[:]) })
	return all
}
