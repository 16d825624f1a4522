package xen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"pagurus/fleet"
)

// The weights of Xen's schedulers: 256 is that of a domain that nothing was said about.
const (
	usualWeight = 256
	leastWeight = 1
	mostWeight  = 65535
	firstWeight = 16 * usualWeight // of the first domain: it has the agent, and the other ends of all disks and links
)

// weights are the weights of the classes for each CPU of a guest, in the ratios that they have in control groups.
var weights = map[fleet.Class]float64{fleet.Gold: 2 * usualWeight, "": usualWeight, fleet.Normal: usualWeight, fleet.Bronze: usualWeight / 2}

// share is what Xen's scheduler gives a domain.
type share struct {
	Weight int `json:"weight"`
	Cap    int `json:"cap,omitempty"` // percent of a CPU; 0: none
}

// service is what a guest is to get while no owner is here.
type service struct {
	class fleet.Class
	cpus  int
	most  float64 // maximum CPUs for each of its own; 0: no limit
}

// shares are what guests get.
type shares struct {
	mu       sync.Mutex
	services map[fleet.GuestID]service
	given    map[fleet.GuestID]share // what Xen was told; none: not by this agent
	low      bool                    // an owner is here
	most     float64                 // CPUs for all guests then; 0: no limit
	slice    time.Duration           // that Slice has set; 0: none
}

// of is what a guest gets now. The lock is held.
func (s *shares) of(id fleet.GuestID) (share, error) {
	is := s.services[id]
	cpus := max(1, is.cpus)
	weight, known := weights[is.class]
	if !known {
		return share{}, fmt.Errorf("there is no class %q", is.class)
	}
	out := share{Weight: int(min(mostWeight, max(leastWeight, math.Round(weight*float64(cpus))))), Cap: percent(is.most * float64(cpus))}
	if !s.low {
		return out, nil
	}
	out.Weight = leastWeight
	all := 0
	for _, each := range s.services {
		all += max(1, each.cpus)
	}
	if part := percent(s.most * float64(cpus) / float64(all)); part > 0 {
		out.Cap = min(part, cmp.Or(out.Cap, part))
	}
	return out, nil
}

// beginGuest notes a guest that is about to be made, and says what it gets.
func (s *shares) beginGuest(t fleet.Task) (share, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteService(t.Guest.ID, service{t.Job.Spec.Class, t.Guest.Need.CPUs, t.Job.Spec.Cap})
	gets, err := s.of(t.Guest.ID)
	if err == nil {
		s.given[t.Guest.ID] = gets
	}
	return gets, err
}

func (s *shares) noteService(id fleet.GuestID, is service) {
	if s.services == nil {
		s.services, s.given = map[fleet.GuestID]service{}, map[fleet.GuestID]share{}
	}
	s.services[id] = is
}

// forget forgets a guest that is gone.
func (s *shares) forget(id fleet.GuestID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.services, id)
	delete(s.given, id)
}

// Class gives a guest the weight of its job's class, and at most the CPUs most for each of its own; 0 is no limit. Xen's
// scheduler keeps both when the guest moves, but the order comes again there. After an error the guest has its old share.
func (d *Driver) Class(g fleet.Guest, class fleet.Class, most float64) error {
	here, err := d.here(g.ID)
	if err == nil {
		d.shares.mu.Lock()
		defer d.shares.mu.Unlock()
		was, had := d.shares.services[g.ID]
		d.shares.noteService(g.ID, service{class, g.Need.CPUs, most})
		if err = d.give(here); err != nil && had {
			d.shares.services[g.ID] = was
		}
	}
	if err != nil {
		return fmt.Errorf("give guest %s its class: %w", g.ID, err)
	}
	return nil
}

// Deprioritise leaves guests the least weight against the first domain and other ones, and at most cpus CPUs together; 0 is no limit. It
// lasts until Restore, even if this process ends. After an error call again.
func (d *Driver) Deprioritise(cpus float64) error { return d.giveAll(true, cpus) }

// Restore ends Deprioritise. Otherwise it changes nothing.
func (d *Driver) Restore() error { return d.giveAll(false, 0) }

func (d *Driver) giveAll(low bool, most float64) error {
	all, err := d.guests.All()
	d.shares.mu.Lock()
	defer d.shares.mu.Unlock()
	d.shares.low, d.shares.most = low, most
	for id, g := range all {
		if _, known := d.shares.services[id]; !known { // of an earlier agent
			d.shares.noteService(id, service{cpus: g.Remembered().Need.CPUs})
		}
	}
	for _, g := range all {
		if g.Lives() && !g.Remembered().Target { // the domain of one that comes may not be there yet, and has its share when it is
			err = errors.Join(err, d.give(g))
		}
	}
	return err
}

// give tells Xen what a guest gets, unless it has it. The shares' lock is held.
func (d *Driver) give(g *guest) error {
	if _, known := d.shares.services[g.ID]; !known {
		return nil // of an earlier agent, which has told Xen
	}
	gets, err := d.shares.of(g.ID)
	if err != nil || d.shares.given[g.ID] == gets {
		return err
	}
	if err = d.tools.schedule(g.life, d.domain(g.ID), gets); err == nil {
		d.shares.given[g.ID] = gets
	}
	return err
}

// schedule sets a domain's weight and cap. Which of the two schedulers runs is the host's choice; they take the same words.
func (t tools) schedule(ctx context.Context, domain string, s share) error {
	args := []string{"-d", domain, "-w", strconv.Itoa(s.Weight), "-c", strconv.Itoa(s.Cap)}
	err := t.run(ctx, append([]string{"sched-credit2"}, args...)...)
	if err == nil {
		return nil
	}
	if err2 := t.run(ctx, append([]string{"sched-credit"}, args...)...); err2 != nil {
		return errors.Join(err2, err)
	}
	return nil
}

// favourFirst gives the first domain more than guests of a few CPUs get that compute all the time, unless it has another weight than
// the usual one.
func (t tools) favourFirst(ctx context.Context) error {
	scheduler := "sched-credit2"
	said, err := t.output(ctx, scheduler, "-d", "Domain-0")
	if err != nil {
		scheduler = "sched-credit"
		var err2 error
		if said, err2 = t.output(ctx, scheduler, "-d", "Domain-0"); err2 != nil {
			return errors.Join(err2, err)
		}
	}
	if weight, err := weightSaid(said); err != nil || weight != usualWeight {
		return err
	}
	return t.run(ctx, scheduler, "-d", "Domain-0", "-w", strconv.Itoa(firstWeight))
}

// weightSaid reads what xl says of a domain's weight: its name, number, weight and cap in the last line.
func weightSaid(text string) (int, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if f := strings.Fields(lines[len(lines)-1]); len(f) >= 3 {
		if weight, err := strconv.Atoi(f[2]); err == nil {
			return weight, nil
		}
	}
	return 0, fmt.Errorf("xl says %q of a domain's weight", text)
}

// Slice sets the time slice of all domains; 0: it stays as it is. Xen's scheduler must be credit.
func (d *Driver) Slice(length time.Duration) error {
	d.shares.mu.Lock()
	defer d.shares.mu.Unlock()
	if length == 0 || length == d.shares.slice {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sliceLimit)
	defer cancel()
	if err := d.tools.slice(ctx, length); err != nil {
		return err
	}
	d.shares.slice = length
	return nil
}

// sliceLimit is for a tool that only makes one call of Xen.
const sliceLimit = 10 * time.Second

// slice sets the time that a virtual CPU runs before another of the same weight does. Xen has one for all domains.
func (t tools) slice(ctx context.Context, length time.Duration) error {
	ms := min(mostSlice, max(1, length.Milliseconds()))
	if err := t.run(ctx, "sched-credit", "-s", "-t", strconv.FormatInt(ms, 10)); err != nil {
		return fmt.Errorf("set the time slice of Xen's scheduler, which must be credit (sched=credit in Xen's command line): %w", err)
	}
	return nil
}

// mostSlice is the longest that Xen takes, in milliseconds.
const mostSlice = 1000

// percent is a number of CPUs as a cap, in percent of one; 0 is none, so the least is 1.
func percent(cpus float64) int {
	if cpus <= 0 {
		return 0
	}
	return max(1, int(math.Round(100*cpus)))
}
