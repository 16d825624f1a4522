package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pagurus/bench"
)

// What a guest whose page cache is warm has read, once, before it computes.
var warming = []string{"sh", "-c", `cat $(find /usr/lib -type f -size +64k) 2>/dev/null | head -c 200000000 >/dev/null; exec ./witness 600 16`}

// pageCache compares how much is sent, and how long it takes, when a guest moves
// that has read many files: by Pagurus, and with `migrate` typed into the QEMU
// of an alike guest, default settings, between two hosts of the same lab. Both
// guests tell QEMU what is free, which by hand is little. Then the same guest is
// moved over a slow link, compressed and not.
func (b *experiments) pageCache(ctx context.Context) error {
	if err := b.InTurn(ctx, nil, b.moveArm("page_cache_move", warming), b.handArm("page_cache_hand", warming)); err != nil {
		return err
	}
	err := errors.Join(
		b.Ratio("bytes sent with a warm page cache / by hand", "page_cache_move_bytes", "page_cache_hand_bytes", 0.6),
		b.Ratio("total time with a warm page cache / by hand", "page_cache_move_s", "page_cache_hand_s", 0.8),
	)
	if err != nil {
		return err
	}
	if !b.Chosen(packedArms[:]...) {
		return nil
	}
	return b.squeezed(ctx)
}

// slowLink is a ceiling that stands for a slow link.
const slowLink = "20M"

// packedArms are the moves over it.
var packedArms = [...]string{"page_cache_plain", "page_cache_packed"}

// squeezed moves a guest to and fro over a slow link, compressed and not.
func (b *experiments) squeezed(ctx context.Context) error {
	err := b.onHost1(ctx, func(job string) error {
		// First without its page cache, or that would be sent by the first alone.
		if _, _, err := b.moved(ctx, job, "host2", "--page-cache", "drop"); err != nil {
			return err
		}
		moves := 0
		arm := func(name, choice string) bench.Arm {
			return bench.Seconds(name, func(ctx context.Context) (time.Duration, error) {
				moves++
				m, took, err := b.moved(ctx, job, []string{"host2", "host1"}[moves%2], "--bandwidth", slowLink, "--compress", choice, "--mode", "pre-copy")
				if err == nil && m.Packed != (choice == "auto") {
					err = fmt.Errorf("with --compress %s it was compressed: %t", choice, m.Packed)
				}
				fmt.Printf("  %d MiB of memory, %d MiB sent\n", m.Cost.CopiedBytes>>20, m.Cost.SentBytes>>20)
				return took, err
			})
		}
		return b.InTurn(ctx, nil, arm(packedArms[0], "off"), arm(packedArms[1], "auto"))
	}, warming)
	if err != nil {
		return err
	}
	return b.Ratio("total time at "+slowLink+"/s, compressed / not", "page_cache_packed_s", "page_cache_plain_s", 0.7)
}
