package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
	"pagurus/show/cli"
)

const (
	joinMachines = 2
	joinHost     = "host2" // the machine that joins
	joinHead     = "host1:7461"
	joinRounds   = 3 // most, since a round of an emulated machine takes minutes
	joinPoll     = time.Second / 4
	joinLimit    = 15 * time.Minute // of each step there
)

// joinLab has machines, which install the packages.
func joinLab() []string { return []string{"--machines", fmt.Sprint(joinMachines)} }

// freshly makes a machine of the lab what it is after its packages are installed: what an
// earlier round has left is purged.
const freshly = `export DEBIAN_FRONTEND=noninteractive
apt-get purge --yes --quiet pagurus
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000 packages /mnt
apt-get install --yes --quiet /mnt/pagurus_*.deb
umount /mnt
systemctl disable --now nfs-ganesha`

// join measures from 'pagurus join' on a fresh machine until MPI_Init has returned in the first
// guest there, whose image has to come from the head.
func (b *experiments) join(ctx context.Context) error {
	if err := b.Initialised(ctx); err != nil {
		return err
	}
	if err := b.Rounds(ctx, min(b.Repeat, joinRounds), nil, bench.Arm{Name: "join", Measure: b.joinOnce}); err != nil {
		return err
	}
	for _, f := range []struct {
		name, says string
		limit      float64
	}{
		{"join_s", "join of a fresh machine, until the command returns", 30},
		{"up_s", "join of a fresh machine, until guests may come", 60},
		{"init_s", "join of a fresh machine, until MPI_Init in its first guest", 300},
	} {
		if err := b.Mean(f.says+", s", "join_"+f.name, f.limit); err != nil {
			return err
		}
	}
	return nil
}

func (b *experiments) joinOnce(ctx context.Context) (map[string]float64, error) {
	inside := func(script string) error {
		_, err := b.Type(ctx, "lab", "exec", joinHost, "--", "sh", "-ec", script)
		return err
	}
	if _, err := b.Type(ctx, "host", "remove", joinHost); err != nil {
		return nil, err
	}
	if err := inside(freshly); err != nil {
		return nil, err
	}
	token, err := b.Type(ctx, "token", "create", "--role", "host")
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := inside(fmt.Sprintf("pagurus join %s --token %s", joinHead, strings.TrimSpace(token))); err != nil {
		return nil, err
	}
	joined := time.Since(begun)
	if err := awaited(ctx, joinHost+" takes guests", func() bool {
		s, err := b.Snapshot(ctx)
		return err == nil && cli.Usable(s.Hosts[joinHost], fleet.Auto)
	}); err != nil {
		return nil, err
	}
	up := time.Since(begun)
	job, err := b.Type(ctx, "run", "--detach", "--kind", string(fleet.Auto), "-n", "1", "--mem", "256M", "--image", "openmpi", "--on", joinHost, "--", "./initialised")
	if err != nil {
		return nil, err
	}
	err = awaited(ctx, "MPI_Init has returned", func() bool {
		out, err := b.Type(ctx, "logs", job)
		return err == nil && strings.Contains(out, "initialised ")
	})
	first := time.Since(begun)
	if err != nil {
		return nil, errors.Join(err, b.Discard(ctx, job))
	}
	_, err = b.Type(ctx, "wait", job)
	return map[string]float64{"join_s": joined.Seconds(), "up_s": up.Seconds(), "init_s": first.Seconds()}, err
}

// awaited waits until something is so.
func awaited(ctx context.Context, what string, so func() bool) error {
	for end := time.Now().Add(joinLimit); !so(); {
		if time.Now().After(end) {
			return fmt.Errorf("after %s it is not so that %s", joinLimit, what)
		}
		if err := drive.Pause(ctx, joinPoll); err != nil {
			return err
		}
	}
	return nil
}
