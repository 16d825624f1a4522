package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// Ability holds what a probe found.
type Ability struct {
	Accelerator string `json:"accelerator"`            // "kvm" or "tcg"
	Version     string `json:"version"`                // of QEMU
	Trouble     string `json:"trouble,omitempty"`      // why hardware virtualization is not used, for people
	NoPostCopy  string `json:"no_post_copy,omitempty"` // why post-copy does not work here, for people; empty: it does
	Saves       bool   `json:"saves,omitempty"`        // guests can be written while they run
	NoSaving    string `json:"no_saving,omitempty"`    // why not, for people

	unsure bool   // hardware virtualization did not answer in time
	tries  int    // of it
	device string // of hardware virtualization, as it was before it was tried
	lacks  string // what the processor lacks of the CPU that guests get, for people
	noCPU  string // why guests cannot have that CPU, for people: none starts here
}

// remembered is an Ability with the conditions that it holds for.
type remembered struct {
	Binary   string    `json:"binary"`
	Modified time.Time `json:"modified"`
	Kernel   string    `json:"kernel"`
	CPU      string    `json:"cpu"`
	Device   string    `json:"device"`         // of hardware virtualization: who may open it
	Access   string    `json:"access"`         // to userfaultfd
	Told     string    `json:"told,omitempty"` // the accelerator that is to be used, and the CPU of guests
	Ability  Ability   `json:"ability"`
}

// kvmDevice is that of hardware virtualization.
const kvmDevice = "/dev/kvm"

// noDevice is what deviceAccess says of a device that is not there.
const noDevice = "none"

// deviceAccess says what a device file is and who may open it.
func deviceAccess(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return noDevice
	}
	return fmt.Sprintf("%o %d:%d %x", st.Mode, st.Uid, st.Gid, st.Rdev)
}

// conditions are what a probe's result holds for.
func (d *Driver) conditions() (remembered, error) {
	now := remembered{Binary: d.binary, Access: UserfaultAccess(), CPU: cpuSeen(Hardware) + virtualization(), Device: deviceAccess(kvmDevice), Told: d.config.Accelerator + strings.TrimPrefix(" "+d.config.CPU, " "+fleet.HostCPU)}
	info, err := os.Stat(d.binary)
	if err != nil {
		return now, fmt.Errorf("probe qemu: %w", err)
	}
	now.Modified = info.ModTime().UTC()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return now, fmt.Errorf("probe qemu: %w", err)
	}
	now.Kernel = unix.ByteSliceToString(name.Release[:])
	return now, nil
}

// probe finds out what works by booting a guest: a device file that opens, or a virtual
// machine that can be made, proves nothing. The result is kept as long as QEMU, the host's
// kernel, its CPU and who may use its devices stay the same, unless hardware
// virtualization did not answer.
func (d *Driver) probe(ctx context.Context) (Ability, error) {
	now, err := d.conditions()
	if err != nil {
		return Ability{}, err
	}
	var before remembered
	if note.Load(d.probeFile(), &before) == nil {
		now.Ability = before.Ability
		if now == before && (before.Ability.Saves || before.Ability.NoSaving != "") { // else an earlier Pagurus probed
			now.Ability.device = now.Device
			return now.Ability, nil
		}
	}
	found, err := findAccelerator(ctx, d.trial(hardwareLimits))
	if err != nil {
		return Ability{}, err
	}
	now.Ability = Ability{Accelerator: found.Accelerator, Version: found.Version, NoPostCopy: d.tryPostCopy(ctx), NoSaving: d.trySaving(ctx, found.Version)}
	now.Ability.Saves = now.Ability.NoSaving == ""
	return d.keepAbility(now, found)
}

func (d *Driver) probeFile() string { return filepath.Join(d.config.Run, "accelerator.json") }

func (d *Driver) trial(limits []time.Duration) acceleratorTrial {
	return acceleratorTrial{
		Binary: d.binary, Folder: d.config.Run, Machine: machineType, Attributes: d.account.Attributes, User: d.config.User,
		CPU:    func(name string) (string, string) { return acceleratorArgument(name), d.triedCPU(name) },
		Device: kvmDevice, Limits: limits, Trusted: d.config.Accelerator == Hardware,
	}
}

// triedCPU is QEMU's CPU model in a trial: that of guests.
func (d *Driver) triedCPU(accelerator string) string {
	if accelerator == Hardware && d.config.CPU != "" {
		return modelOf(d.config.CPU)
	}
	return acceleratorCPU(accelerator)
}

// keepAbility completes an ability by what was found, and keeps it if that was an answer.
func (d *Driver) keepAbility(now remembered, found acceleration) (Ability, error) {
	a := &now.Ability
	a.Accelerator, a.Trouble, a.device = found.Accelerator, found.Trouble, now.Device
	if found.Unsure { // the next start tries again, and this driver later
		a.unsure, a.tries = true, a.tries+found.Tries
		a.Trouble = fmt.Sprintf("%s (tries: %d)", found.Trouble, a.tries)
		return *a, nil
	}
	a.unsure = false
	if err := note.Replace(d.probeFile(), now); err != nil {
		return Ability{}, fmt.Errorf("keep the probe's result: %w", err)
	}
	return *a, nil
}
