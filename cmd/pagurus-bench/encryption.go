package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pagurus/bench"
	"pagurus/bench/programs"
	"pagurus/fleet"
)

// usualLab has no encryption: moves by hand, which others are compared with, have none either, and
// wireguard-go would take the CPUs that are measured.
func usualLab() []string { return labOf(fleet.NoEncryption) }

// encryptionLab is another one: each of its rounds makes it again.
func encryptionLab() []string { return labOf(fleet.AutoEncryption) }

func labOf(e fleet.Encryption) []string {
	return []string{"--hosts", strconv.Itoa(labHosts), "--" + fleet.EncryptionFlag, string(e)}
}

// encryptionLimit is how long it takes: each round makes two labs, and a busy machine takes minutes for that.
const encryptionLimit = 9 * time.Minute

// encryption compares labs with encryption and without: messages between two containers of two hosts, moves of a
// guest of either kind, and the stall of a job whose container moves. Both ends, and all that they
// run, share the CPUs of one machine, so where encryption takes CPUs of their own it costs less.
func (b *experiments) encryption(ctx context.Context) error {
	for _, name := range []string{"pingpong", "tight"} {
		if err := b.compile(ctx, "openmpi", name, "mpicc", "-O2"); err != nil {
			return err
		}
	}
	if err := b.Within(ctx, encryptionLimit, b.protected("encrypted", fleet.AutoEncryption), b.protected("plain", fleet.NoEncryption)); err != nil {
		return err
	}
	var errs []error
	for _, f := range []struct{ says, figure string }{
		{"latency of 8 bytes between containers", "latency_s"},
		{"time of 64 MiB between containers", "transfer_s"},
		{"total time of moving a container", "move_s"},
		{"total time of moving a virtual machine", "vm_move_s"},
		{"stall of a job whose container moves", "stall_s"},
	} {
		errs = append(errs, b.Beside(f.says+", encrypted / plain", "encrypted_"+f.figure, "plain_"+f.figure))
	}
	return errors.Join(errs...)
}

// protected measures all of it in a lab of its own.
func (b *experiments) protected(name string, e fleet.Encryption) bench.Arm {
	return bench.Arm{Name: name, Measure: func(ctx context.Context) (map[string]float64, error) {
		for _, words := range [][]string{{"lab", "down"}, append([]string{"lab", "up"}, labOf(e)...)} {
			if _, err := b.Type(ctx, words...); err != nil {
				return nil, err
			}
		}
		got := map[string]float64{}
		said, err := b.Type(ctx, "run", "--kind", "container", "-n", "2", "--guests", "2", "--mem", "256M", "--image", "openmpi", "--on", "host1,host2", "--", "./pingpong")
		if err != nil {
			return nil, err
		}
		var errs [2]error
		got["latency_s"], errs[0] = programs.Named(said, "LATENCY")
		got["transfer_s"], errs[1] = programs.Named(said, "TRANSFER")
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("the program printed %q: %w", said, err)
		}
		for figure, kind := range map[string]fleet.Kind{"move_s": fleet.Container, "vm_move_s": fleet.VM} {
			err := b.computes(ctx, func(job string) error {
				_, took, err := b.moved(ctx, job, "host2")
				got[figure] = took.Seconds()
				return err
			}, "--kind", string(kind), "-n", "1", "--mem", "512M", "--image", "openmpi", "--on", "host1", "--", "./witness", "600", "128")
			if err != nil {
				return nil, err
			}
		}
		var stall time.Duration
		stall, err = b.stallOf(ctx, shape{fleet.Container, 2, ourTimeout}, 1)
		got["stall_s"] = stall.Seconds()
		return got, err
	}}
}
