package qemu

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

func TestProbeIsBuiltFromItsSource(t *testing.T) {
	testkit.Built(t, "probe.bin", "probe.asm", "91d31364b4a742fbbc29832f3e219a2657a850c5c08d47ee848b05e511537750")
}

// Hardware virtualization that does not answer is tried again with more time. If it never
// answers, emulation is used and the result counts as unsure. Its refusal is an answer.
func TestSlowHardwareIsTriedAgain(t *testing.T) {
	testkit.Root(t, "qemu-system-x86_64")
	real, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	slow := "exec sleep 60"
	denied := "echo 'Could not access KVM kernel module: Permission denied' >&2"
	burns := "while :; do :; done;"
	tcg := `set -- $(echo "$*" | sed 's/-accel kvm[^ ]*/-accel tcg/; s/-cpu host[^ ]*/-cpu max/');`
	rooted := "if grep -q '^CapAmb:.*2$' /proc/self/status; then "
	late := `[ $(wc -l <tries) -gt 1 ] || exec sleep 60; set -- $(echo "$*" | sed 's/-accel kvm[^ ]*/-accel tcg/; s/-cpu host[^ ]*/-cpu max/')`
	// Each way to answer has time as an emulated guest has: no machine is too busy for it. What does not answer has little.
	hasty, patient := []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}, []time.Duration{coldLimit}
	for _, c := range []struct {
		hardware string // what stands in QEMU's place does when it is told to use KVM
		want     acceleration
		tries    int
		limits   []time.Duration
	}{
		{slow, acceleration{Accelerator: Emulation, Unsure: true}, 2, hasty},
		{late, acceleration{Accelerator: Hardware}, 2, []time.Duration{hasty[0], coldLimit}},
		{"echo refused >&2; exit 1", acceleration{Accelerator: Emulation, Trouble: "kvm: a tiny guest did not run: exit status 1: refused"}, 1, patient},
		{denied + "; exit 1", acceleration{Accelerator: Emulation, Trouble: ", which would not help: user ada may not open"}, 2, patient},
		{rooted + tcg + "else " + denied + "; exit 1; fi", acceleration{Accelerator: Emulation, Trouble: ": give it to a group that may, as with `chgrp kvm "}, 2, patient},
		{rooted + burns + "else " + denied + "; exit 1; fi", acceleration{Accelerator: Emulation, Trouble: "which would not help: KVM runs kernel code too slowly here"}, 2, patient},
		{"printf ..; " + burns, acceleration{Accelerator: Emulation, Trouble: `KVM runs kernel code too slowly here (2.0 million instructions in `}, 1, patient},
	} {
		dir := t.TempDir()
		binary := filepath.Join(dir, "qemu")
		script := fmt.Sprintf("#!/bin/sh\ncd %s\ncase \"$*\" in *kvm*) %s ;; esac\nexec %s \"$@\"\n", dir, c.hardware, real)
		if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		after := time.Hour
		if strings.Contains(c.hardware, burns) {
			after = 100 * time.Millisecond
		}
		tries, hardware := 0, false
		got, err := findAccelerator(context.Background(), acceleratorTrial{
			Binary: binary, Folder: dir, Machine: machineType, Device: dir, User: "ada", Limits: c.limits, SlowAfter: after,
			CPU: func(name string) (string, string) {
				hardware = name == Hardware
				return acceleratorArgument(name), acceleratorCPU(name)
			},
			Attributes: func() *syscall.SysProcAttr { // as QEMU begins: what stands in its place may not get as far as to count
				if hardware {
					tries++
				}
				if err := os.WriteFile(filepath.Join(dir, "tries"), bytes.Repeat([]byte("\n"), tries), 0o644); err != nil {
					t.Error(err)
				}
				return &syscall.SysProcAttr{Setpgid: true}
			},
		})
		if err != nil || got.Accelerator != c.want.Accelerator || got.Unsure != c.want.Unsure || got.Tries != c.tries || !strings.Contains(got.Trouble, c.want.Trouble) {
			t.Errorf("%q: %+v, %v", c.hardware, got, err)
		}
		if tries != c.tries {
			t.Errorf("%q: KVM was tried %d times, want %d", c.hardware, tries, c.tries)
		}
	}
}

// TestTriedAgain: a driver tries hardware virtualization that did not answer again, says how
// often it has, keeps an answer only, and changes its accelerator only while no guest is here.
func TestTriedAgain(t *testing.T) {
	testkit.Root(t, "qemu-system-x86_64")
	real, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "qemu")
	answers := `[ $(wc -l <tries) -gt 1 ] || exec sleep 60; set -- $(echo "$*" | sed 's/-accel kvm[^ ]*/-accel tcg/; s/-cpu host[^ ]*/-cpu max/')`
	script := fmt.Sprintf("#!/bin/sh\ncd %s\ncase \"$*\" in *kvm*) echo >>tries; %s ;; esac\nexec %s \"$@\"\n", dir, answers, real)
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := &Driver{config: Config{Run: dir, User: "ada", Log: slog.Default()}, binary: binary, life: ctx, end: cancel}
	trial := func(limit time.Duration) acceleratorTrial {
		a := d.trial([]time.Duration{limit})
		a.Device, a.Attributes = dir, func() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
		return a
	}
	now, err := d.conditions()
	if err != nil {
		t.Fatal(err)
	}
	found, err := findAccelerator(ctx, trial(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	first, err := d.keepAbility(now, found)
	if err != nil || !first.unsure || !strings.HasSuffix(first.Trouble, "within 1s (tries: 1)") {
		t.Fatalf("the first trial: %+v, %v", first, err)
	}
	if _, err := os.Stat(d.probeFile()); err == nil {
		t.Error("no answer was kept")
	}
	d.setAbility(first)
	if err := d.guests.Add("g1", self(t), func() {}); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		d.tryWith(ctx, []time.Duration{time.Millisecond}, 10*time.Millisecond, func() acceleratorTrial { return trial(10 * time.Second) })
	}()
	testkit.Until(t, 20*time.Second, "the answer is kept", func() bool { _, err := os.Stat(d.probeFile()); return err == nil })
	time.Sleep(100 * time.Millisecond)
	if got := d.able().Accelerator; got != Emulation {
		t.Errorf("with a guest here the accelerator is %s", got)
	}
	d.guests.Remove("g1")
	<-over
	if got := d.able(); got.Accelerator != Hardware || got.Trouble != "" {
		t.Errorf("without guests: %+v", got)
	}
}

// TestCPUIsTriedWithHardware: hardware virtualization that works later than a driver opens is used where guests can have their CPU by it,
// and what the processor lacks of that is said. Else guests are emulated on, and the host says why, until a trial finds otherwise.
func TestCPUIsTriedWithHardware(t *testing.T) {
	testkit.Root(t, "qemu-system-x86_64")
	real, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		opens string // what stands in QEMU's place does when it is told to make a machine with that CPU
		want  Ability
	}{
		"all of it":     {"", Ability{Accelerator: Hardware}},
		"a part of it":  {`case "$*" in *enforce*) echo lacks pdpe1gb >&2; exit 1 ;; esac;`, Ability{Accelerator: Hardware, lacks: "lacks pdpe1gb"}},
		"none of it":    {"echo no such CPU >&2; exit 1;", Ability{Accelerator: Emulation, Trouble: "guests cannot have the CPU Snowridge-v1 here; choose another with --cpu: kvm: a tiny guest did not run: exit status 1: no such CPU"}},
		"at the second": {"[ $(wc -l <opened) -gt 2 ] || { echo busy >&2; exit 1; };", Ability{Accelerator: Hardware}},
	} {
		dir := t.TempDir()
		binary := filepath.Join(dir, "qemu")
		script := fmt.Sprintf("#!/bin/sh\ncd %s\ncase \"$*\" in *kvm*) case \"$*\" in *-kernel*) ;; *) echo >>opened; %s ;; esac; %s ;; esac\nexec %s \"$@\"\n", dir, c.opens,
			`set -- $(echo "$*" | sed 's/-accel kvm[^ ]*/-accel tcg/; s/-cpu [^ ]*/-cpu max/')`, real)
		if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		d := &Driver{config: Config{Run: dir, User: "ada", CPU: "Snowridge-v1", Log: slog.Default()}, binary: binary, life: ctx, end: cancel}
		d.setAbility(Ability{Accelerator: Emulation, Trouble: "there is none"})
		trial := func() acceleratorTrial {
			a := d.trial([]time.Duration{10 * time.Second})
			a.Device, a.Attributes = dir, func() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
			return a
		}
		tries := 1
		if name == "at the second" {
			tries = 2
		}
		for range tries {
			d.tryWith(ctx, []time.Duration{time.Millisecond}, time.Millisecond, trial)
		}
		got := d.able()
		if got.Accelerator != c.want.Accelerator || got.Trouble != c.want.Trouble || !strings.HasSuffix(got.lacks, c.want.lacks) || (got.lacks == "") != (c.want.lacks == "") || got.noCPU != "" {
			t.Errorf("%s: %+v", name, got)
		}
		if can := d.Abilities(); can.Lacks != got.lacks || can.Emulated != got.Trouble {
			t.Errorf("%s: it says %+v", name, can)
		}
	}
}

// TestAgree: guests that an earlier agent left decide what this one runs guests with.
func TestAgree(t *testing.T) {
	for _, c := range []struct {
		found Ability
		was   string
		want  string
	}{
		{Ability{Accelerator: Hardware}, Emulation, Emulation},
		{Ability{Accelerator: Hardware, noCPU: "no"}, Emulation, Emulation},
		{Ability{Accelerator: Hardware}, Hardware, Hardware},
		{Ability{Accelerator: Hardware}, "", Hardware},
		{Ability{Accelerator: Emulation, unsure: true}, Hardware, Hardware},
		{Ability{Accelerator: Emulation}, Emulation, Emulation},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		d := &Driver{ability: c.found, life: ctx, end: cancel}
		g := self(t)
		g.Record.Accelerator = c.was
		if err := d.guests.Add("g1", g, func() {}); err != nil {
			t.Fatal(err)
		}
		if err := d.agree(); err != nil {
			t.Fatal(err)
		}
		if got := d.able(); got.Accelerator != c.want || (got.Trouble == "") != (c.want == Hardware || c.found.Accelerator == c.want) {
			t.Errorf("%+v with a guest by %q: %+v", c.found, c.was, got)
		} else if c.found.noCPU != "" && (got.Trouble != c.found.noCPU || got.noCPU != "") {
			t.Errorf("emulated guests do not start, or nobody knows why they are: %+v", got)
		}
		cancel()
		d.guests.Watches.Wait()
	}
}

// A module that is loaded later than the agent starts, as while a machine boots, is noticed, also within the trial; so is that its
// device gets another owner afterwards.
func TestDeviceThatComesLater(t *testing.T) {
	device := filepath.Join(t.TempDir(), "kvm")
	d, tried := &Driver{}, make(chan string)
	d.setAbility(Ability{Accelerator: Emulation, device: noDevice})
	ctx, cancel := context.WithCancel(t.Context())
	watch := func() {
		d.whenever(ctx, device, time.Millisecond, func() bool { tried <- deviceAccess(device); return false })
		close(tried)
	}
	go watch()
	select {
	case <-tried:
		t.Fatal("it is not there yet")
	case <-time.After(20 * time.Millisecond):
	}
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-tried
	if err := os.Chmod(device, 0o660); err != nil {
		t.Fatal(err)
	}
	for access := range tried {
		if access == deviceAccess(device) {
			break
		}
	}
	cancel()
	for range tried { // until it ends
		t.Error("nothing has changed")
	}

	// It came while hardware virtualization was being tried.
	d.whenever(t.Context(), device, time.Hour, func() bool { return true })
}
