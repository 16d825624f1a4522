package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"pagurus/bench"
)

// allowance is what a warm run may take beyond 1.5 boots: the program's own
// start over two guests.
const allowance = 2.0

// start compares the time from the command to MPI_Init returned on both ranks
// of a warm 2-guest job with a bare boot of one such guest by hand.
func (b *experiments) start(ctx context.Context) error {
	if err := b.Initialised(ctx); err != nil {
		return err
	}
	if err := b.Compile(ctx, "openmpi", "first", []byte(firstProcess), "gcc", "-static", "-O1"); err != nil {
		return err
	}
	if _, err := b.ToInit(ctx, "vm"); err != nil {
		return err // the first run warms the caches
	}
	machine, err := b.machine(ctx)
	if err != nil {
		return err
	}
	limit := func() {
		boots := b.Samples("boot_s")
		b.Sample("run_limit_s", 1.5*boots[len(boots)-1]+allowance)
	}
	err = b.InTurn(ctx, limit, bench.Seconds("run", func(ctx context.Context) (time.Duration, error) { return b.ToInit(ctx, "vm") }),
		bench.Seconds("boot", func(ctx context.Context) (time.Duration, error) { return b.bareBoot(ctx, machine) }))
	if err != nil {
		return err
	}
	return b.Ratio("run to MPI_Init / (1.5 bare boots + 2 s)", "run_s", "run_limit_s", 1)
}

// machine gives the part of a guest's command line that says what machine it
// is and how its kernel starts, taken from one that runs, so that the boot by
// hand is of the same.
func (b *experiments) machine(ctx context.Context) (args []string, err error) {
	err = b.During(ctx, "", func(job string) error {
		_, line, err := running(guestFolder("host1", job+"g0"))
		if err == nil {
			args, err = same(line)
		}
		return err
	}, "-n", "1", "--image", "openmpi", "--on", "host1", "--", "sleep", "600")
	return args, err
}

// machineFlags are those of QEMU that say what machine a guest is.
var machineFlags = []string{"-machine", "-accel", "-cpu", "-smp", "-m", "-append"}

// same picks these and their values out of a command line.
func same(line []string) ([]string, error) {
	var out []string
	for _, flag := range machineFlags {
		at := slices.Index(line, flag)
		if at < 0 || at+1 == len(line) {
			return nil, fmt.Errorf("a guest's QEMU has no %s: %q", flag, line)
		}
		out = append(out, flag, line[at+1])
	}
	return out, nil
}

// bareBoot starts the same kernel, modules and disk as a guest's by hand, on
// the same machine, and waits for its first user process.
func (b *experiments) bareBoot(ctx context.Context, machine []string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, byHand)
	defer cancel()
	folder, initrd, err := b.bareGuest()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	c := exec.CommandContext(ctx, "qemu-system-x86_64", append([]string{"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "stdio", "-kernel", filepath.Join(folder, "vmlinuz"), "-initrd", initrd,
		"-drive", "if=none,id=root,format=raw,readonly=on,file=" + filepath.Join(folder, "root.img"), "-device", "virtio-blk-pci,drive=root"},
		machine...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := c.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	var seen bytes.Buffer
	for piece := make([]byte, 4096); ; {
		n, err := out.Read(piece)
		seen.Write(piece[:n])
		if bytes.Contains(seen.Bytes(), []byte("first user process")) {
			return time.Since(begun), nil
		}
		if err != nil {
			return 0, fmt.Errorf("the guest by hand did not come up: %s", seen.String())
		}
	}
}
