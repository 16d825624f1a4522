package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/bench"
	"pagurus/fleet"
)

// What a guest whose page cache is warm has read, once, before it computes.
const warming = `cat $(find /usr/lib -type f -size +64k) 2>/dev/null | head -c 200000000 >/dev/null; exec ./witness 600 16`

// pageCache compares how much is sent, and how long it takes, when a guest moves
// that has read many files: by Pagurus, and with `migrate` typed into the QEMU
// of an alike guest, default settings, between two hosts of the same lab. Both
// guests tell QEMU what is free, which by hand is little. Then the same guest is
// moved over a slow link, compressed and not.
func (b *experiments) pageCache(ctx context.Context) error {
	err := b.InTurn(ctx, nil, bench.Arm{Name: "page_cache_move", Measure: func(ctx context.Context) (map[string]float64, error) {
		move, took, err := b.warmMove(ctx)
		return map[string]float64{"bytes": float64(move.Cost.SentBytes), "dropped_bytes": float64(move.Cost.DroppedBytes), "s": took.Seconds()}, err
	}}, bench.Arm{Name: "page_cache_hand", Measure: func(ctx context.Context) (map[string]float64, error) {
		sent, took, err := b.warmMoveByHand(ctx)
		return map[string]float64{"bytes": float64(sent), "s": took.Seconds()}, err
	}})
	if err != nil {
		return err
	}
	err = errors.Join(
		b.Ratio("bytes sent with a warm page cache / by hand", "page_cache_move_bytes", "page_cache_hand_bytes", 0.6),
		b.Ratio("total time with a warm page cache / by hand", "page_cache_move_s", "page_cache_hand_s", 0.8),
	)
	if err != nil {
		return err
	}
	return b.squeezed(ctx)
}

// warmed starts a job whose guest has read files.
func (b *experiments) warmed(ctx context.Context) (job string, err error) {
	job, err = b.Type(ctx, "run", "--detach", "-n", "1", "--mem", "512M", "--image", "openmpi", "--on", "host1", "--", "sh", "-c", warming)
	if err == nil {
		if err = b.busy(ctx, job); err != nil {
			err = errors.Join(err, b.Discard(ctx, job))
		}
	}
	return job, err
}

func (b *experiments) warmMove(ctx context.Context) (m fleet.Migration, took time.Duration, err error) {
	job, err := b.warmed(ctx)
	if err != nil {
		return m, 0, err
	}
	defer func() { err = errors.Join(err, b.Discard(ctx, job)) }()
	return b.moved(ctx, "migrate", job+"g0", "--to", "host2", "--wait")
}

// moved makes a move of one guest and gives what it cost.
func (b *experiments) moved(ctx context.Context, args ...string) (fleet.Migration, time.Duration, error) {
	none := fleet.Migration{}
	if _, err := b.Type(ctx, args...); err != nil {
		return none, 0, err
	}
	s, err := b.Snapshot(ctx)
	if err != nil {
		return none, 0, err
	}
	var last fleet.Move
	for _, m := range s.Moves {
		if m.Begun.After(last.Begun) {
			last = m
		}
	}
	if last.Ended.IsZero() || len(last.Migrations) != 1 {
		return none, 0, errors.New("the last move has not ended, or was of several guests")
	}
	return s.Migrations[last.Migrations[0]], last.Ended.Sub(last.Begun), nil
}

func (b *experiments) warmMoveByHand(ctx context.Context) (sent int64, took time.Duration, err error) {
	job, err := b.warmed(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		_, e := b.Type(context.WithoutCancel(ctx), "lab", "restart", "host1")
		err = errors.Join(err, e, b.Discard(ctx, job))
	}()
	if _, err := b.Type(ctx, "lab", "kill", "host1"); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	h, err := b.byHand(ctx, job+"g0", 0, "host1", "host3")
	took = time.Since(begun)
	if h != nil {
		sent = h.sent
		h.end()
	}
	return sent, took, err
}

// slowLink is a ceiling that stands for a slow link.
const slowLink = "20M"

// squeezed moves a guest to and fro over a slow link, compressed and not.
func (b *experiments) squeezed(ctx context.Context) (err error) {
	job, err := b.warmed(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Discard(ctx, job)) }()
	// First without its page cache, or that would be sent by the first alone.
	if _, _, err := b.moved(ctx, "migrate", job+"g0", "--to", "host2", "--wait", "--page-cache", "drop"); err != nil {
		return err
	}
	hosts := []string{"host1", "host2"}
	for i := range 2 * b.Repeat {
		choice, name := "off", "page_cache_plain_s"
		if (i/2+i)%2 == 1 { // in each repeat the other one first
			choice, name = "auto", "page_cache_packed_s"
		}
		m, took, err := b.moved(ctx, "migrate", job+"g0", "--to", hosts[i%2], "--wait", "--bandwidth", slowLink, "--compress", choice, "--mode", "pre-copy")
		if err != nil {
			return err
		}
		if m.Packed != (choice == "auto") {
			return fmt.Errorf("with --compress %s it was compressed: %t", choice, m.Packed)
		}
		b.Sample(name, took.Seconds())
		fmt.Printf("  at %s a second, compressed %t: %.2f s, %d MiB of memory, %d MiB sent\n", slowLink, m.Packed, took.Seconds(), m.Cost.CopiedBytes>>20, m.Cost.SentBytes>>20)
	}
	return b.Ratio("total time at "+slowLink+"/s, compressed / not", "page_cache_packed_s", "page_cache_plain_s", 0.7)
}
