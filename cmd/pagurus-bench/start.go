package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pagurus/measure/stats"
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
	if _, err := b.pagurus(ctx, "run", "-n", "2", "--guests", "2", "--image", "openmpi", "--", "./init"); err != nil {
		return err // the first run warms the caches
	}
	for range b.repeat {
		begun := time.Now()
		out, err := b.pagurus(ctx, "run", "-n", "2", "--guests", "2", "--image", "openmpi", "--", "./init")
		if err != nil {
			return err
		}
		if strings.Count(out, "initialised") != 2 {
			return fmt.Errorf("not both ranks spoke: %q", out)
		}
		took := begun // the last rank's own clock, set from this machine's, says when MPI_Init returned
		for line := range strings.Lines(out) {
			if at, ok := strings.CutPrefix(strings.TrimSpace(line), "initialised "); ok {
				ns, err := strconv.ParseInt(at, 10, 64)
				if err != nil {
					return err
				}
				if t := time.Unix(0, ns); t.After(took) {
					took = t
				}
			}
		}
		b.sample("run_s", took.Sub(begun).Seconds())
		boot, err := b.bareBoot(ctx)
		if err != nil {
			return err
		}
		b.sample("boot_s", boot.Seconds())
		b.sample("run_limit_s", 1.5*boot.Seconds()+allowance)
		fmt.Printf("  run to MPI_Init %.2f s, bare boot %.2f s\n", took.Sub(begun).Seconds(), boot.Seconds())
	}
	return b.ratio("run to MPI_Init / (1.5 bare boots + 2 s)", "run_s", "run_limit_s", 1)
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
	if err := os.WriteFile(filepath.Join(b.dir, "init.c"), []byte(source), 0o644); err != nil {
		return err
	}
	if _, err := b.pagurus(ctx, "image", "shell", "openmpi", "--", "mpicc", "-o", "init", "init.c"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "first.c"), []byte(firstProcess), 0o644); err != nil {
		return err
	}
	_, err := b.pagurus(ctx, "image", "shell", "openmpi", "--", "gcc", "-static", "-O1", "-o", "first", "first.c")
	return err
}

// bareBoot starts the same kernel, modules and disk as a guest's by hand and
// waits for its first user process.
func (b *bench) bareBoot(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, byHand)
	defer cancel()
	folder, initrd, err := b.bareGuest()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	c := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "pc-q35-7.2", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "512M", "-serial", "stdio",
		"-kernel", filepath.Join(folder, "vmlinuz"), "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1",
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+filepath.Join(folder, "root.img"), "-device", "virtio-blk-pci,drive=root")
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

// size looks at what the processes of an idle cluster with four guests take.
func (b *bench) size(ctx context.Context) error {
	job, err := b.pagurus(ctx, "run", "--detach", "-n", "4", "--guests", "4", "--mem", "256M", "--image", "openmpi", "--", "sleep", "900")
	if err != nil {
		return err
	}
	defer func() { _, _ = b.pagurus(context.WithoutCancel(ctx), "cancel", job) }()
	if err := b.running(ctx, job); err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	controller, err := processOf("controller")
	if err != nil {
		return err
	}
	agent, err := processOf("agent")
	if err != nil {
		return err
	}
	for range max(b.repeat, 2) {
		before, err := cpuTime(controller)
		if err != nil {
			return err
		}
		begun := time.Now()
		if err := pause(ctx, 5*time.Second); err != nil {
			return err
		}
		after, err := cpuTime(controller)
		if err != nil {
			return err
		}
		b.sample("controller_cpu_percent", 100*(after-before).Seconds()/time.Since(begun).Seconds())
		b.sample("controller_mib", residentMiB(controller))
		b.sample("agent_mib", residentMiB(agent))
	}
	for name, limit := range map[string]float64{"controller_cpu_percent": 2, "controller_mib": 150, "agent_mib": 40} {
		m, err := stats.Mean(b.record.Samples[name], confidence)
		if err != nil {
			return err
		}
		b.figure(name+", 3 hosts and 4 guests, idle", m, limit)
	}
	return nil
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
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the job did not begin to run")
}

// processOf finds the lab's controller, or one of its agents.
func processOf(role string) (int, error) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		line, err := os.ReadFile(f)
		words := strings.Split(string(line), "\x00")
		if err == nil && len(words) > 1 && filepath.Base(words[0]) == "pagurus" && words[1] == role {
			return strconv.Atoi(filepath.Base(filepath.Dir(f)))
		}
	}
	return 0, fmt.Errorf("no %s runs", role)
}

// ticksPerSecond is USER_HZ, the unit of proc(5)'s stat.
const ticksPerSecond = 100

func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(words[11])
	system, err2 := strconv.Atoi(words[12])
	return time.Duration(user+system) * time.Second / ticksPerSecond, errors.Join(err1, err2)
}

func residentMiB(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
			return kib / 1024
		}
	}
	return 0
}
