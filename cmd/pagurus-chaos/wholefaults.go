package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/act/daemon"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// outcome is what became of a fault of a whole cluster.
type outcome struct {
	fault
	err error
}

// injectWhole injects the faults of the plan into a whole cluster, each as soon as nothing of
// its class is under way.
func (c *chaos) injectWhole(ctx context.Context) error {
	var under sync.WaitGroup
	defer under.Wait()
	over := make(chan outcome, len(wholeShares)) // never more are under way
	busy := map[class]bool{}
	var waiting []fault
	end, next := time.Now().Add(c.limit), 1
	for time.Now().Before(end) && (next <= c.faults || len(waiting)+len(busy) > 0) {
		for len(waiting) < window && next <= c.faults {
			waiting = append(waiting, plannedWhole(c.seed, next, c.may()))
			next++
		}
		at := ready(waiting, busy)
		if at < 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case was := <-over:
				delete(busy, wholeShareOf(was.Kind).class)
				switch {
				case errors.Is(was.err, errMissed) && was.misses < mostMisses: // it comes again, and is counted then
					waiting = append(waiting, was.later())
				case was.err != nil && !errors.Is(was.err, errMissed):
					return fmt.Errorf("fault %d, %s: %w", was.Number, was.Kind, was.err)
				}
			}
			continue
		}
		f := waiting[at]
		waiting = slices.Delete(waiting, at, at+1)
		of := wholeShareOf(f.Kind).class
		busy[of] = true
		if err := drive.Pause(ctx, f.After); err != nil {
			return err
		}
		under.Go(func() {
			err := c.injectInWhole(ctx, f)
			if errors.Is(err, errMissed) || err != nil && ctx.Err() != nil {
				c.forget(f)
				err = errMissed
			}
			_ = drive.Pause(ctx, between[of])
			over <- outcome{f, err}
		})
	}
	return context.Cause(ctx)
}

// between is a pause after a fault before the next one of its class, in which a cluster may
// find itself.
var between = map[class]time.Duration{ofControllers: 3 * time.Second, ofHosts: 2 * time.Second, ofAll: 5 * time.Second}

// ready gives the first fault that may come now; -1: none may. Nothing overtakes one that
// waits for all others.
func ready(waiting []fault, busy map[class]bool) int {
	for i, f := range waiting {
		of := wholeShareOf(f.Kind).class
		if of == ofAll && len(busy) == 0 || of != ofAll && !busy[of] && !busy[ofAll] {
			return i
		}
		if of == ofAll {
			break
		}
	}
	return -1
}

// injectInWhole injects one fault, and returns when it is repaired.
func (c *chaos) injectInWhole(ctx context.Context, f fault) error {
	host := fleet.HostID(fmt.Sprintf("host%d", 1+f.Pick%uint64(c.hosts)))
	k := &injection{fault: f, At: time.Now(), Host: host}
	if of := wholeShareOf(f.Kind).class; of == ofControllers || of == ofClocks || of == ofAll {
		k.Host = ""
	}
	noted := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.injections = append(c.injections, k)
	}
	strikes := func() { // for as long as it lasts, and then for some time
		c.mu.Lock()
		defer c.mu.Unlock()
		c.whole.strike(k.Host, time.Now().Add(time.Minute))
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if k.Host == "" && wholeShareOf(f.Kind).class != ofAll && f.Kind != majorityKilled {
			return // one controller less costs nothing
		}
		c.whole.strike(k.Host, time.Now())
	}()
	switch f.Kind {
	case hostPower:
		noted()
		strikes()
		return c.cutPower(ctx, f, host)
	case hostCut, linkSlow, linkLossy:
		noted()
		strikes()
		if f.Kind == hostCut {
			f.Kind = linkCut
		}
		return c.strain(ctx, f, host)
	case controlCut, hostsCut:
		noted()
		strikes()
		return c.silence(ctx, f, host)
	case hostAgent:
		noted()
		strikes()
		return c.services[string(host)].kill(f.Lasts, c.naps(f.Number))
	case hostGuest:
		return c.killSomeGuest(ctx, k, f, noted)
	case majorityKilled:
		noted()
		k.Host = ""
		strikes()
		return c.killControllers(ctx, f, wholeControllers-1)
	case leaderKilled, memberKilled, leaderSuspended, memberSuspended:
		return c.hitController(ctx, f, noted)
	case controllerFull:
		noted()
		return c.fillController(ctx, f)
	case clockSet:
		return c.setClock(ctx, f, noted)
	case agentVersion, controllerVersion:
		noted()
		if k.Host != "" {
			strikes()
		}
		return c.otherVersion(ctx, f, host)
	case rollback:
		strikes()
		return c.rollBack(ctx, f, noted)
	}
	return fmt.Errorf("unknown fault %q", f.Kind)
}

// cutPower ends everything of a host at once, and starts it again later.
func (c *chaos) cutPower(ctx context.Context, f fault, host fleet.HostID) error {
	s := c.services[string(host)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := c.Type(context.WithoutCancel(ctx), "lab", "power", string(host), "off"); err != nil {
		return err
	}
	_ = drive.Pause(ctx, f.Lasts)
	link, err := port(host)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(link), s.start(c.naps(f.Number)))
}

// nobody is where frames go that are to reach nobody.
var nobody = net.HardwareAddr{2, 0, 0, 0, 0x67, 1}

// end is one end of a way between two addresses: a network namespace, empty for the machine's
// own, and a link in it.
type end struct {
	space daemon.Namespace
	link  string
	addr  net.IP
}

// mute has nothing reach an address from one end any more; the sender is not told. unmute ends it.
func (e end) mute(to net.IP) error {
	return e.neighbour(to, func(n *netlink.Neigh) error { return netlink.NeighSet(n) })
}

func (e end) unmute(to net.IP) error {
	return e.neighbour(to, func(n *netlink.Neigh) error { return netlink.NeighDel(n) })
}

func (e end) neighbour(of net.IP, do func(*netlink.Neigh) error) error {
	change := func() error {
		link, err := netlink.LinkByName(e.link)
		if err != nil {
			return err
		}
		return do(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: of, HardwareAddr: nobody})
	}
	if e.space == "" {
		return change()
	}
	return e.space.Do(change)
}

// endOf is the end at a host.
func endOf(host fleet.HostID) end {
	n := 0
	_, _ = fmt.Sscanf(string(host), "host%d", &n) // the lab's names are of this form
	return end{daemon.Namespace(namespaceOf + string(host)), labUplink, labAddress(byte(n))}
}

// silence cuts a host off the controllers, or off all other hosts.
func (c *chaos) silence(ctx context.Context, f fault, host fleet.HostID) (err error) {
	self := endOf(host)
	others := []end{{"", labBridge, labAddress(labController)}}
	if f.Kind == hostsCut {
		others = nil
		for n := range c.hosts {
			if other := fleet.HostID(fmt.Sprintf("host%d", n+1)); other != host {
				others = append(others, endOf(other))
			}
		}
	}
	for _, other := range others {
		defer func() { err = errors.Join(err, self.unmute(other.addr), other.unmute(self.addr)) }()
		if err := errors.Join(self.mute(other.addr), other.mute(self.addr)); err != nil {
			return err
		}
	}
	_ = drive.Pause(ctx, f.Lasts)
	return nil
}

// A lab's bridge, where the controllers are, a host's link in its namespace, and addresses.
const (
	labBridge     = "pglab0"
	labUplink     = "eth0"
	labController = 254
)

func labAddress(n byte) net.IP { return net.IPv4(198, 18, 0, n) }

// guestLimit is how long to wait for a guest that can be killed.
const guestLimit = 20 * time.Second

// killSomeGuest kills all processes of a guest.
func (c *chaos) killSomeGuest(ctx context.Context, k *injection, f fault, noted func()) error {
	var all []copyOf
	for end := time.Now().Add(guestLimit); len(all) == 0 && time.Now().Before(end); { // after a rollback there may be none
		var err error
		if all, err = c.copies(); err != nil || len(all) == 0 {
			_ = drive.Pause(ctx, scanEvery)
		}
	}
	if len(all) == 0 {
		return errMissed
	}
	slices.SortFunc(all, func(a, b copyOf) int { return cmp.Compare(a.guest, b.guest) })
	at := all[f.Pick%uint64(len(all))]
	c.mu.Lock()
	k.Host = at.host
	c.whole.strike(at.host, time.Now())
	c.whole.killed[c.last.Guests[at.guest].Job] = true
	for host, g := range c.last.Guests { // its job may be told by where the controller has it
		if host == at.guest {
			c.whole.strike(g.Home, time.Now())
		}
	}
	c.mu.Unlock()
	pids := members(at.guest, at.host)
	if len(pids) == 0 {
		return errMissed
	}
	noted()
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// controllerOf is what the lab calls a controller.
func controllerOf(n int) string {
	if n == 1 {
		return head
	}
	return fmt.Sprint(head, n)
}

// leader names the controller that leads.
func (c *chaos) leader(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	all, err := c.client.Heads(ctx)
	for _, h := range all {
		if err == nil && h.Leads {
			return h.Name
		}
	}
	return ""
}

// hitController kills or suspends the controller that leads, or another one.
func (c *chaos) hitController(ctx context.Context, f fault, noted func()) error {
	leads := c.leader(ctx)
	if leads == "" {
		return errMissed
	}
	name := leads
	if f.Kind == memberKilled || f.Kind == memberSuspended {
		others := slices.DeleteFunc([]string{controllerOf(1), controllerOf(2), controllerOf(3)}, func(n string) bool { return n == leads })
		name = others[f.Pick%uint64(len(others))]
	}
	s := c.services[name]
	if f.Kind == leaderKilled || f.Kind == memberKilled {
		noted()
		return s.kill(f.Lasts, "")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.d.Running()
	if !ok {
		return errMissed
	}
	noted()
	if err := unix.Kill(p.PID, unix.SIGSTOP); err != nil {
		return err
	}
	_ = drive.Pause(ctx, f.Lasts)
	return unix.Kill(p.PID, unix.SIGCONT)
}

// killControllers kills so many controllers at once, and starts them again.
func (c *chaos) killControllers(ctx context.Context, f fault, n int) error {
	var errs []error
	stopped := make([]*service, n)
	for i := range n {
		s := c.services[controllerOf(1+(i+int(f.Pick%wholeControllers))%wholeControllers)]
		s.mu.Lock()
		defer s.mu.Unlock()
		if p, ok := s.d.Running(); ok {
			errs = append(errs, p.End(0))
		}
		stopped[i] = s
	}
	_ = drive.Pause(ctx, f.Lasts)
	for _, s := range stopped {
		errs = append(errs, s.start(""))
	}
	return errors.Join(errs...)
}

// stateOf is the disk of a controller.
func stateOf(n int) disk {
	if n == 1 {
		return disk{labState}
	}
	return disk{filepath.Join(labState, controllerOf(n))}
}

// fillController fills the disk of the second or third controller. Its store ends it, and it
// is started again.
func (c *chaos) fillController(ctx context.Context, f fault) error {
	n := 2 + int(f.Pick%2)
	c.mu.Lock()
	c.disk, c.full = time.Now().Add(f.Lasts+diskGrace), controllerOf(n)
	c.mu.Unlock()
	rest := int64(nearlyFull)
	if f.Pick%4 < 2 {
		rest = 0
	}
	empty, err := stateOf(n).fill(rest)
	if err != nil {
		return err
	}
	_ = drive.Pause(ctx, f.Lasts)
	return empty()
}

// saveEvery is between two backups.
const saveEvery = 20 * time.Second

// backup is the file of the newest backup.
func (c *chaos) backup() string { return filepath.Join(c.Dir, "cluster.backup") }

// rollBack restores the newest backup, which is some time old, to one controller, as an
// administrator does who has lost all; the others join it again with empty folders.
func (c *chaos) rollBack(ctx context.Context, f fault, noted func()) error {
	c.whole.store.Lock()
	defer c.whole.store.Unlock()
	if _, err := os.Stat(c.backup()); err != nil {
		return errMissed
	}
	ctx = context.WithoutCancel(ctx) // a half restored lab is no lab
	noted()
	for n := 1; n <= wholeControllers; n++ {
		s := c.services[controllerOf(n)]
		s.mu.Lock()
		defer s.mu.Unlock()
		if p, ok := s.d.Running(); ok {
			if err := p.End(0); err != nil {
				return err
			}
		}
	}
	c.mu.Lock()
	c.whole.back = append(c.whole.back, time.Now())
	c.mu.Unlock()
	_ = drive.Pause(ctx, f.Lasts)
	for n := 2; n <= wholeControllers; n++ {
		if err := hollow(stateOf(n).folder); err != nil {
			return err
		}
	}
	first := c.services[controllerOf(1)]
	restore := slices.Insert(slices.Clone(first.d.Command), 1, "restore", c.backup(), "--force")
	var said strings.Builder
	if err := first.d.Once(ctx, &said, restore...); err != nil {
		return fmt.Errorf("restoring a backup: %w: %s", err, said.String())
	}
	if err := first.start(""); err != nil {
		return err
	}
	_, err := c.Type(ctx, "lab", "up")
	before, _ := filepath.Glob(filepath.Join(labState, "before-restore-*")) // a constant pattern is well-formed
	for _, folder := range before {
		err = errors.Join(err, os.RemoveAll(folder))
	}
	return err
}

// hollow removes what is in a folder.
func hollow(folder string) error {
	all, err := os.ReadDir(folder)
	for _, e := range all {
		err = errors.Join(err, os.RemoveAll(filepath.Join(folder, e.Name())))
	}
	return err
}
