// Package owner is the sensors that tell whether the owner of a host is at it:
// what others than Pagurus use of its CPUs, who waits for what, memory, the
// last key or mouse or ssh input, listed programs, the battery.
//
// Each sensor stands alone. One that is missing, or fails, says so and does not
// count; none of them decides anything, and what they see leaves the host only
// as numbers and names of sensors: no input is read, only when it came.
// Its tests run against the real kernel and a real logind.
//
// # What counts as others
//
// On a machine of its own (Machine) it is the time all CPUs were busy with
// programs, less what Pagurus used: its guests' group, its daemons, its file
// servers. Interrupts and the kernel's own threads (writing back, encrypting
// disks, freeing memory) count for nobody: they are as often for guests as not.
//
// Where several hosts share one machine, as in a lab, each is a network
// namespace (Network): there it is what the processes in that namespace used,
// with the children they have waited for, less Pagurus's own. A program that is
// started in the namespace is found by the next sample; one that moves there
// later within half a minute. Keys, battery, waiting and memory are the
// machine's, so they do not count there.
//
// On a machine whose owner's programs are all in one control group
// ("cgroup:user.slice", say) that group's account is read and nothing else.
package owner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pagurus/fleet"
)

// Scope says whose use of the CPUs counts.
type Scope string

// The scopes; beside them there is "cgroup:" and a group's path.
const (
	Machine Scope = "machine" // everybody's on the machine but Pagurus's
	Network Scope = "network" // that of the processes in this process's network namespace
)

const groupPrefix = "cgroup:"

// Config is what the sensors have to know of Pagurus to leave it out.
type Config struct {
	Scope Scope
	Group string                        // control group of the host's guests, as "pagurus/host1"
	Used  func() (time.Duration, error) // CPU time of that group
	Run   string                        // folder that command lines of Pagurus's own programs name

	Programs []string // files of Pagurus's own programs, besides this one
}

// Sensors are a host's sensors. Its methods are not to be called side by side.
type Sensors struct {
	config   Config
	nonGuest *nonGuestLoad
	input    *input
	power    string // folder of the kernel's power supplies
	deaf     map[string]string
	machine  bool
	held     func() int64 // memory of guests, in bytes
}

// Open makes the sensors; it fails only if the scope means nothing.
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

// Holding has the sensors ask how much memory Pagurus's guests hold, which does
// not count as used. To be called before the first Sample.
func (s *Sensors) Holding(held func() int64) { s.held = held }

// Close lets go of what the sensors hold open.
func (s *Sensors) Close() error {
	if s.input != nil {
		return s.input.close()
	}
	return nil
}

// Sample asks every sensor. exclusive are the programs to look for, by the
// names that ps -o comm shows. It takes milliseconds, longer only if logind
// hangs, and then no longer than its own limit.
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

// ofMachine asks what tells of a machine as a whole.
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

// errEarly: there is nothing yet to take a difference from.
var errEarly = errors.New("first sample")

// groupOf gives the path of a scope that names a control group.
func groupOf(s Scope) (string, bool) { return strings.CutPrefix(string(s), groupPrefix) }

// ParseScope reads what a person wrote.
func ParseScope(text string) (Scope, error) {
	s := Scope(text)
	if g, is := groupOf(s); s == Machine || s == Network || is && g != "" && !strings.Contains(g, "..") {
		return s, nil
	}
	return "", fmt.Errorf("%q does not say whose use of the CPUs counts as the owner's: use %s, %s or %sPATH", text, Machine, Network, groupPrefix)
}
