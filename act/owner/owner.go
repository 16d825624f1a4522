// Package owner is the sensors for a host owner's presence: non-guest load, waiting for
// CPU and memory, free memory, the last key, mouse or ssh input, listed programs, the
// battery.
//
// Sensors are independent. A missing or failed one reports that and does not count. They
// decide nothing, and only numbers and sensor names leave the host: no input is read,
// only its time. The tests use the real kernel and a real logind.
//
// # What counts as others
//
// On a machine of its own (Machine), others' use is the busy time of all CPUs minus
// Pagurus's: its guests' group, daemons and file servers. Interrupts and kernel threads
// (write-back, disk encryption, memory reclaim) are not counted: they often work for
// guests.
//
// If several hosts share a machine, as in a lab, each is a network namespace (Network).
// There it is the use by processes in the namespace and the children that they waited
// for, minus Pagurus's. A program started in the namespace is found by the next sample;
// one that moves there later within half a minute. Keys, battery, waiting and memory are
// the machine's, so they do not count there.
//
// If the owner's programs are all in one cgroup ("cgroup:user.slice", say), only its
// account is read.
package owner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
)

// Scope is the processes whose CPU use counts.
type Scope string

// The scopes; "cgroup:" and a group's path is another.
const (
	Machine Scope = "machine" // all processes of the machine except Pagurus's
	Network Scope = "network" // the processes in this process's network namespace
)

const groupPrefix = "cgroup:"

// Config tells the sensors what belongs to Pagurus.
type Config struct {
	Scope Scope
	Group string                        // cgroup of the host's guests, as "pagurus/host1"
	Used  func() (time.Duration, error) // CPU time of that group
	Run   string                        // folder in the command lines of Pagurus's own programs

	Programs []string // files of Pagurus's own programs, besides this one
}

// Sensors are a host's sensors. Its methods must not be called concurrently.
type Sensors struct {
	config   Config
	nonGuest *nonGuestLoad
	input    *input
	power    string // folder of the kernel's power supplies
	deaf     map[string]string
	machine  bool
	held     func() int64 // memory of guests, in bytes
}

// Open makes the sensors; it fails only for an invalid scope.
func Open(c Config) (*Sensors, error) {
	if c.Scope == "" {
		c.Scope = Machine
	}
	s := &Sensors{config: c, power: "/sys/class/power_supply", deaf: map[string]string{}, machine: c.Scope != Network, held: func() int64 { return 0 }}
	var err error
	if s.nonGuest, err = openNonGuestLoad(c); err != nil {
		return nil, err
	}
	if s.machine {
		s.input = openInput("/")
	}
	return s, nil
}

// Holding sets how the memory of Pagurus's guests is found, which does not count as used.
// Call it before the first Sample.
func (s *Sensors) Holding(held func() int64) { s.held = held }

// Close closes the sensors' files and connections.
func (s *Sensors) Close() error {
	if s.input != nil {
		return s.input.close()
	}
	return nil
}

// Sample reads every sensor. exclusive are the programs to find, by their names in ps -o
// comm. It takes milliseconds, and longer only if logind hangs, up to its limit.
func (s *Sensors) Sample(ctx context.Context, exclusive []string) fleet.OwnerSample {
	var out fleet.OwnerSample
	note := func(sensor string, err error) bool {
		delete(s.deaf, sensor)
		if err != nil && !errors.Is(err, errEarly) {
			s.deaf[sensor] = err.Error()
		}
		return err == nil
	}
	if cpus, err := s.nonGuest.use(len(exclusive) > 0); note("non-guest load", err) {
		out.NonGuestCPUs = &cpus
	}
	if s.machine {
		s.ofMachine(ctx, &out, note)
	}
	out.Exclusive = s.nonGuest.running(exclusive)
	for _, sensor := range sortedKeys(s.deaf) {
		out.Deaf = append(out.Deaf, sensor+": "+s.deaf[sensor])
	}
	return out
}

// ofMachine reads the sensors of the whole machine.
func (s *Sensors) ofMachine(ctx context.Context, out *fleet.OwnerSample, note func(string, error) bool) {
	if p, err := pressure("/proc/pressure/cpu", "some"); note("waiting for CPUs", err) {
		out.Waiting = &p
	}
	if p, err := pressure("/proc/pressure/memory", "full"); note("waiting for memory", err) {
		out.Starved = &p
	}
	if a, err := available("/proc/meminfo", s.held()); note("memory", err) {
		out.Available = &a
	}
	var err error
	out.Idle, err = s.input.idle(ctx)
	note("input", err)
	on, err := onBattery(s.power)
	note("battery", err)
	out.OnBattery = on
}

// errEarly: a difference needs a previous sample.
var errEarly = errors.New("first sample")

// groupOf returns the path of a scope for a cgroup.
func groupOf(s Scope) (string, bool) { return strings.CutPrefix(string(s), groupPrefix) }

// ParseScope parses a scope.
func ParseScope(text string) (Scope, error) {
	s := Scope(text)
	if g, is := groupOf(s); s == Machine || s == Network || is && g != "" && !strings.Contains(g, "..") {
		return s, nil
	}
	return "", fmt.Errorf("%q does not say whose use of the CPUs counts as the owner's: use %s, %s or %sPATH", text, Machine, Network, groupPrefix)
}
