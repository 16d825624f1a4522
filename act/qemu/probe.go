package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/note"
)

// Ability is a probe's result.
type Ability struct {
	Accelerator string `json:"accelerator"`            // "kvm" or "tcg"
	Version     string `json:"version"`                // of QEMU
	Trouble     string `json:"trouble,omitempty"`      // why hardware virtualization is not used, for people
	NoPostCopy  string `json:"no_post_copy,omitempty"` // why post-copy does not work here, for people; empty: it does
}

// remembered is an Ability with the conditions that it holds for.
type remembered struct {
	Binary   string    `json:"binary"`
	Modified time.Time `json:"modified"`
	Kernel   string    `json:"kernel"`
	Access   string    `json:"access"` // to userfaultfd
	Ability  Ability   `json:"ability"`
}

// probe finds out what works by booting a guest: a device file that opens, or a virtual
// machine that can be made, proves nothing. The result is kept as long as QEMU and the
// host's kernel stay the same, unless hardware virtualization did not answer.
func (d *Driver) probe(ctx context.Context) (Ability, error) {
	now := remembered{Binary: d.binary, Access: UserfaultAccess()}
	info, err := os.Stat(d.binary)
	if err != nil {
		return Ability{}, fmt.Errorf("probe qemu: %w", err)
	}
	now.Modified = info.ModTime().UTC()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Ability{}, fmt.Errorf("probe qemu: %w", err)
	}
	now.Kernel = unix.ByteSliceToString(name.Release[:])
	path := filepath.Join(d.config.Run, "accelerator.json")
	var before remembered
	if note.Load(path, &before) == nil {
		now.Ability = before.Ability
		if now == before {
			return before.Ability, nil
		}
	}
	found, err := findAccelerator(ctx, acceleratorTrial{
		Binary: d.binary, Folder: d.config.Run, Machine: machineType, Attributes: d.account.Attributes,
		CPU:    func(name string) (string, string) { return acceleratorArgument(name), acceleratorCPU(name) },
		Device: "/dev/kvm", Limits: hardwareLimits,
	})
	if err != nil {
		return Ability{}, err
	}
	now.Ability = Ability{Accelerator: found.Accelerator, Version: found.Version, Trouble: found.Trouble, NoPostCopy: d.tryPostCopy(ctx)}
	if found.Unsure { // the next start tries again
		return now.Ability, nil
	}
	if err := note.Replace(path, now); err != nil {
		return Ability{}, fmt.Errorf("keep the probe's result: %w", err)
	}
	return now.Ability, nil
}
