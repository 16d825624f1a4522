package qemu

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/qemu/proc"
	"pagurus/act/qemu/uffd"
)

// The accelerators.
const (
	hardware  = "kvm"
	emulation = "tcg"
)

// probeGuest is a kernel of a few instructions; probe.asm is its source.
//
//go:embed probe.bin
var probeGuest []byte

// Where the probe's kernel says that it came to its end, what it says, and
// what QEMU makes of that as its exit status.
const (
	exitPort   = "isa-debug-exit,iobase=0x501,iosize=1"
	exitByte   = 0x10
	exitStatus = exitByte<<1 | 1
)

// probeLimit: the probe takes 0.2 s under emulation; an accelerator that
// takes longer is none.
const probeLimit = 5 * time.Second

// oldest is the first QEMU whose machine type guests use.
const oldestMajor, oldestMinor = 7, 2

// Ability is what a probe found.
type Ability struct {
	Accelerator string `json:"accelerator"`            // "kvm" or "tcg"
	Version     string `json:"version"`                // of QEMU
	Trouble     string `json:"trouble,omitempty"`      // why hardware virtualization is not used, for people
	NoPostCopy  string `json:"no_post_copy,omitempty"` // why no guest can run here before its memory has come, for people; empty: it can
}

// remembered is an Ability and what it was found for.
type remembered struct {
	Binary   string    `json:"binary"`
	Modified time.Time `json:"modified"`
	Kernel   string    `json:"kernel"`
	Access   string    `json:"access"` // to userfaultfd
	Ability  Ability   `json:"ability"`
}

// probe finds out what works by booting a guest: a device file that opens, and
// even a virtual machine that can be made, prove nothing. The answer is kept
// for as long as QEMU and the host's kernel stay the same.
func (d *Driver) probe(ctx context.Context) (Ability, error) {
	now := remembered{Binary: d.binary, Access: uffd.Access()}
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
	if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &before) == nil {
		now.Ability = before.Ability
		if now == before {
			return before.Ability, nil
		}
	}
	if now.Ability, err = find(ctx, d.config.Run, d.binary, d.account); err != nil {
		return Ability{}, err
	}
	now.Ability.NoPostCopy = d.tryPostCopy(ctx)
	text, err := json.Marshal(now)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		return Ability{}, fmt.Errorf("keep what the probe found: %w", err)
	}
	return now.Ability, nil
}

func find(ctx context.Context, run, binary string, who proc.Account) (Ability, error) {
	version, err := versionOf(ctx, binary)
	if err != nil {
		return Ability{}, err
	}
	kernel := filepath.Join(run, "probe.bin")
	if err := os.WriteFile(kernel, probeGuest, 0o644); err != nil {
		return Ability{}, fmt.Errorf("probe qemu: %w", err)
	}
	defer os.Remove(kernel)
	a := Ability{Accelerator: hardware, Version: version}
	trouble := bootProbe(ctx, binary, kernel, hardware, who)
	if trouble == nil {
		return a, nil
	}
	a.Accelerator, a.Trouble = emulation, trouble.Error()
	if err := bootProbe(ctx, binary, kernel, emulation, who); err != nil {
		return Ability{}, err
	}
	return a, nil
}

var versionLine = regexp.MustCompile(`version (([0-9]+)\.([0-9]+)[0-9.]*)`)

func versionOf(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	text, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	m := versionLine.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s does not say its version", binary)
	}
	major, _ := strconv.Atoi(string(m[2]))
	minor, _ := strconv.Atoi(string(m[3]))
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return "", fmt.Errorf("%s is version %s; install %d.%d or newer", binary, m[1], oldestMajor, oldestMinor)
	}
	return string(m[1]), nil
}

func bootProbe(ctx context.Context, binary, kernel, name string, who proc.Account) error {
	if name == hardware {
		if _, err := os.Stat("/dev/kvm"); err != nil {
			return fmt.Errorf("%s: this machine has no /dev/kvm", name)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-machine", machineType, "-accel", accelerator(name), "-cpu", cpuModel(machine{accelerator: name}),
		"-m", "16", "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-kernel", kernel, "-device", exitPort)
	cmd.SysProcAttr = who.Attributes()
	cmd.Dir = "/" // where the account cannot leave a core file
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: a tiny guest did not come to its end within %s", name, probeLimit)
	case errors.As(err, &exit) && exit.ExitCode() == exitStatus:
		return nil
	case err == nil:
		return fmt.Errorf("%s: a tiny guest ended too early", name)
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return fmt.Errorf("%s: a tiny guest did not run: %w: %s", name, err, lines[0])
}
