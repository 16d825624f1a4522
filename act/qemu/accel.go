// This file finds out which accelerator works on this machine. It boots a kernel of a few
// instructions, because a device file that opens, or a virtual machine that can be made,
// proves nothing.

package qemu

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
)

// The accelerators.
const (
	Hardware  = "kvm"
	Emulation = "tcg"
)

// probeGuest is a kernel of a few instructions; its source is probe.asm.
//
//go:embed probe.bin
var probeGuest []byte

// Where the probe's kernel reports success, the value it writes, and QEMU's exit status
// for that value. Before that it writes a byte for each step of its work.
const (
	exitPort   = "isa-debug-exit,iobase=0x501,iosize=1"
	exitByte   = 0x10
	exitStatus = exitByte<<1 | 1
	stepPort   = "isa-debugcon,iobase=0xe9,chardev=steps"

	stepInstructions = 2_000_000
)

// A KVM that interprets a guest's kernel, as some do that are made of software, boots the probe and no kernel in any time worth it.
// Such a one does a million instructions a second; a KVM in a machine that is emulated itself does tens of millions. What counts is
// processor time, since a machine may be busy.
const (
	slowAfter = 5 * time.Second // of processor time
	leastRate = 4_000_000       // instructions a second of it
)

// errSlow is wrapped by the error of a probe that worked, but too slowly.
var errSlow = errors.New("KVM runs kernel code too slowly here")

// hardwareLimits are how long hardware virtualization may take, in turn. The probe takes
// 0.4 s even under emulation, but a busy machine, or one inside another, may need longer.
// coldLimit is for emulation, the last resort, when QEMU may be read from a slow disk.
var hardwareLimits = []time.Duration{5 * time.Second, coldLimit}

const coldLimit = 30 * time.Second

// errNoAnswer is wrapped by the error of a probe that did not end in time. That says
// nothing of the accelerator.
var errNoAnswer = errors.New("a tiny guest did not come to its end")

// oldest is the first QEMU whose machine type guests use.
const oldestMajor, oldestMinor = 7, 2

// acceleration is the result.
type acceleration struct {
	Accelerator string // Hardware or Emulation
	Version     string // of QEMU
	Trouble     string // why hardware virtualization is not used, for people
	Unsure      bool   // it is not used because it did not answer in time
	Tries       int    // of hardware virtualization
}

// acceleratorTrial is how QEMU is tested.
type acceleratorTrial struct {
	Binary     string
	Folder     string                                      // for a temporary file
	Machine    string                                      // type of machine
	CPU        func(accelerator string) (full, cpu string) // QEMU's argument for an accelerator, and its CPU model
	Attributes func() *syscall.SysProcAttr                 // the account it runs as
	Device     string                                      // of hardware virtualization
	Limits     []time.Duration                             // of hardware virtualization, in turn
	User       string                                      // the account's name
	Sure       bool                                        // emulation works: it is not tried
	Trusted    bool                                        // hardware virtualization is used wherever its device opens
	SlowAfter  time.Duration                               // 0: slowAfter
}

// findAccelerator finds the accelerator that works; an error says that none does.
func findAccelerator(ctx context.Context, t acceleratorTrial) (acceleration, error) {
	version, err := versionOf(ctx, t.Binary)
	if err != nil {
		return acceleration{}, err
	}
	kernel := filepath.Join(t.Folder, "probe.bin")
	if err := os.WriteFile(kernel, probeGuest, 0o644); err != nil {
		return acceleration{}, fmt.Errorf("probe qemu: %w", err)
	}
	defer os.Remove(kernel)
	tries, trouble := 0, errNoAnswer
	if t.Trusted {
		_, model := t.CPU(Hardware)
		tries, trouble = 1, t.opens(ctx, Hardware, model, coldLimit)
	}
	for _, limit := range t.Limits {
		if t.Trusted {
			break
		}
		if errors.Is(trouble, errNoAnswer) {
			trouble = t.boot(ctx, kernel, Hardware, limit)
			tries++
		}
	}
	if errors.Is(trouble, errDenied) {
		trouble = t.advised(ctx, kernel, trouble)
		tries++
	}
	if trouble == nil {
		return acceleration{Accelerator: Hardware, Version: version, Tries: tries}, nil
	}
	if !t.Sure {
		if err := t.boot(ctx, kernel, Emulation, coldLimit); err != nil {
			return acceleration{}, err
		}
	}
	return acceleration{Accelerator: Emulation, Version: version, Trouble: trouble.Error(), Unsure: errors.Is(trouble, errNoAnswer), Tries: tries}, nil
}

var versionLine = regexp.MustCompile(`version (([0-9]+)\.([0-9]+)[0-9.]*)`)

// versionOf returns QEMU's version. Too old a version is an error.
func versionOf(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, coldLimit)
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

// opens makes a virtual machine, which runs nothing, with an accelerator and a CPU.
func (t acceleratorTrial) opens(ctx context.Context, name, model string, limit time.Duration) error {
	if err := t.there(name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.Binary, "-machine", t.Machine, "-accel", acceleratorArgument(name), "-cpu", model,
		"-m", "16", "-no-user-config", "-nodefaults", "-display", "none", "-S", "-qmp", "stdio")
	cmd.SysProcAttr = t.Attributes()
	cmd.Dir = "/" // where the account cannot write a core file
	cmd.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}{"execute":"quit"}`)
	var said bytes.Buffer
	cmd.Stderr = &said
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w within %s", name, errNoAnswer, limit)
	}
	return t.refused(name, said.Bytes(), err)
}

// gives says why guests cannot have a CPU here; nil: they can, or it is the host's own. Of a model the processor may lack
// something, which guests lack then; of a level not. Emulated guests have another CPU, but a model that QEMU does not know is none.
func (t acceleratorTrial) gives(ctx context.Context, name, cpu string) (lacks string, err error) {
	if cpu == "" || name == Emulation && (fleet.IsCPULevel(cpu) || fleet.OwnProcessor(cpu)) || cpu == fleet.HostCPU {
		return "", nil
	}
	if name == Hardware {
		err = t.opens(ctx, name, modelOf(cpu)+enforce, coldLimit)
		if err != nil && !fleet.IsCPULevel(cpu) {
			lacks = err.Error()
			err = t.opens(ctx, name, cpu, coldLimit)
		}
	} else {
		err = t.opens(ctx, name, cpu, coldLimit)
	}
	if err != nil {
		return "", fmt.Errorf("guests cannot have the CPU %s here; choose another with --cpu: %w", cpu, err)
	}
	return lacks, nil
}

// enforce has QEMU refuse a CPU of which the processor lacks something, instead of leaving that out.
const enforce = ",enforce"

// there says that the accelerator's device is missing; nil: it is not, or needs none.
func (t acceleratorTrial) there(name string) error {
	if _, err := os.Stat(t.Device); name == Hardware && err != nil {
		return fmt.Errorf("this machine has no %s: switch virtualization on in its firmware, and load the module kvm_intel or kvm_amd", t.Device)
	}
	return nil
}

// errDenied is wrapped by the error of a trial whose account may not open the device.
var errDenied = errors.New("may not open")

// advised adds to denied what helps, if hardware virtualization works for who may open the device.
func (t acceleratorTrial) advised(ctx context.Context, kernel string, denied error) error {
	attributes := t.Attributes
	t.Attributes = func() *syscall.SysProcAttr {
		as := attributes()
		as.AmbientCaps = append(as.AmbientCaps, unix.CAP_DAC_OVERRIDE)
		return as
	}
	if t.Trusted {
		_, model := t.CPU(Hardware)
		if err := t.opens(ctx, Hardware, model, coldLimit); err != nil {
			return fmt.Errorf("%w, which would not help: %w", denied, err)
		}
	} else if err := t.boot(ctx, kernel, Hardware, coldLimit); err != nil {
		return fmt.Errorf("%w, which would not help: %w", denied, err)
	}
	return fmt.Errorf("%w: give it to a group that may, as with `chgrp kvm %[2]s && chmod 660 %[2]s`, and restart the agent", denied, t.Device)
}

// refused says why QEMU did not run, by what it printed.
func (t acceleratorTrial) refused(name string, said []byte, err error) error {
	if name == Hardware && bytes.Contains(said, []byte("Permission denied")) {
		return fmt.Errorf("user %s %w %s", t.User, errDenied, t.Device)
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(said), []byte("\n"))
	return fmt.Errorf("%s: a tiny guest did not run: %w: %s", name, err, line)
}

// boot boots a tiny guest. errNoAnswer: it did not come to its end within limit.
func (t acceleratorTrial) boot(ctx context.Context, kernel, name string, limit time.Duration) error {
	if err := t.there(name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	full, model := t.CPU(name)
	cmd := exec.CommandContext(ctx, t.Binary, "-machine", t.Machine, "-accel", full, "-cpu", model,
		"-m", "16", "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-kernel", kernel, "-device", exitPort,
		"-chardev", "stdio,id=steps", "-device", stepPort)
	cmd.SysProcAttr = t.Attributes()
	cmd.Dir = "/" // where the account cannot write a core file
	var out bytes.Buffer
	var steps stepCount
	cmd.Stdout, cmd.Stderr = &steps, &out
	err := cmd.Start()
	slow := error(nil)
	if err == nil {
		end := func() { err = cmd.Wait() }
		if name == Hardware {
			slow = steps.watch(cmd.Process, cmp.Or(t.SlowAfter, slowAfter), end)
		} else {
			end()
		}
	}
	var exit *exec.ExitError
	switch {
	case slow != nil:
		return slow
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w within %s", name, errNoAnswer, limit)
	case errors.As(err, &exit) && exit.ExitCode() == exitStatus:
		return nil
	case err == nil:
		return fmt.Errorf("%s: a tiny guest ended too early", name)
	}
	return t.refused(name, out.Bytes(), err)
}

// stepCount counts the steps of the probe's guest.
type stepCount struct{ n atomic.Int64 }

// Write takes what the guest wrote.
func (s *stepCount) Write(b []byte) (int, error) {
	s.n.Add(int64(len(b)))
	return len(b), nil
}

// watch waits for the end of QEMU, and ends it when it is too slow, which is its error.
func (s *stepCount) watch(p *os.Process, after time.Duration, wait func()) (slow error) {
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		every := time.NewTicker(after / 50)
		defer every.Stop()
		for {
			select {
			case <-over:
				return
			case <-every.C:
			}
			used, err := host.ReadStat(p.Pid)
			done := max(s.n.Load()-1, 0) * stepInstructions // the first byte is before the first step
			if err != nil || used.CPU < after || float64(done) >= leastRate*used.CPU.Seconds() {
				continue
			}
			slow = fmt.Errorf("%w (%.1f million instructions in %.1f s): emulation is used; accelerator = %q overrides it", errSlow, float64(done)/1e6, used.CPU.Seconds(), Hardware)
			_ = p.Kill()
			return
		}
	})
	wait()
	close(over)
	watching.Wait()
	return slow
}
