package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"pagurus/measure/drive"
)

// allowance is what a warm run may take beyond 1.5 boots: the program's own
// start over two guests.
const allowance = 2.0

// start compares the time from the command to MPI_Init returned on both ranks
// of a warm 2-guest job with a bare boot of one such guest by hand.
func (b *bench) start(ctx context.Context) error {
	if err := b.initProgram(ctx); err != nil {
		return err
	}
	if _, err := b.Type(ctx, "run", "-n", "2", "--guests", "2", "--image", "openmpi", "--", "./init"); err != nil {
		return err // the first run warms the caches
	}
	machine, err := b.machine(ctx)
	if err != nil {
		return err
	}
	for i := range b.repeat {
		var took, boot time.Duration
		err := inTurn(i, func() (err error) {
			took, err = b.toInit(ctx)
			return err
		}, func() (err error) {
			boot, err = b.bareBoot(ctx, machine)
			return err
		})
		if err != nil {
			return err
		}
		b.sample("run_s", took.Seconds())
		b.sample("boot_s", boot.Seconds())
		b.sample("run_limit_s", 1.5*boot.Seconds()+allowance)
		fmt.Printf("  run to MPI_Init %.2f s, bare boot %.2f s\n", took.Seconds(), boot.Seconds())
	}
	return b.ratio("run to MPI_Init / (1.5 bare boots + 2 s)", "run_s", "run_limit_s", 1)
}

// toInit takes the time from the command to MPI_Init returned on both ranks.
func (b *bench) toInit(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	out, err := b.Type(ctx, "run", "-n", "2", "--guests", "2", "--image", "openmpi", "--", "./init")
	if err != nil {
		return 0, err
	}
	if strings.Count(out, "initialised") != 2 {
		return 0, fmt.Errorf("not both ranks spoke: %q", out)
	}
	last := begun // the last rank's own clock, set from this machine's, says when MPI_Init returned
	for line := range strings.Lines(out) {
		if at, ok := strings.CutPrefix(strings.TrimSpace(line), "initialised "); ok {
			ns, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				return 0, err
			}
			if t := time.Unix(0, ns); t.After(last) {
				last = t
			}
		}
	}
	return last.Sub(begun), nil
}

// machine gives the part of a guest's command line that says what machine it
// is and how its kernel starts, taken from one that runs, so that the boot by
// hand is of the same.
func (b *bench) machine(ctx context.Context) (args []string, err error) {
	job, err := b.Type(ctx, "run", "--detach", "-n", "1", "--image", "openmpi", "--on", "host1", "--", "sleep", "600")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.discard(ctx, job)) }()
	if err := b.running(ctx, job); err != nil {
		return nil, err
	}
	_, line, err := running(guestFolder("host1", job+"g0"))
	if err != nil {
		return nil, err
	}
	return same(line)
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

func (b *bench) initProgram(ctx context.Context) error {
	const source = `#include <mpi.h>
#include <stdio.h>
#include <time.h>
int main(int c, char **v) {
	struct timespec t;
	MPI_Init(&c, &v);
	clock_gettime(CLOCK_REALTIME, &t);
	printf("initialised %ld%09ld\n", (long)t.tv_sec, t.tv_nsec);
	MPI_Finalize();
	return 0;
}
`
	if err := os.WriteFile(filepath.Join(b.Dir, "init.c"), []byte(source), 0o644); err != nil {
		return err
	}
	if _, err := b.Type(ctx, "image", "shell", "openmpi", "--", "mpicc", "-o", "init", "init.c"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "first.c"), []byte(firstProcess), 0o644); err != nil {
		return err
	}
	_, err := b.Type(ctx, "image", "shell", "openmpi", "--", "gcc", "-static", "-O1", "-o", "first", "first.c")
	return err
}

// bareBoot starts the same kernel, modules and disk as a guest's by hand, on
// the same machine, and waits for its first user process.
func (b *bench) bareBoot(ctx context.Context, machine []string) (time.Duration, error) {
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

func (b *bench) running(ctx context.Context, job string) error {
	for range 600 {
		s, err := b.snapshot(ctx)
		if err == nil {
			for id, j := range s.Jobs {
				if string(id) == job && j.State == "running" {
					return nil
				}
			}
		}
		if err := drive.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the job did not begin to run")
}
