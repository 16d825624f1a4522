package main

import (
	_ "embed"
	"fmt"
	"strings"
)

// chainSource is the program of jobs that go on from checkpoints. All that it prints follows
// from its arguments, so one line too many, too few or wrong is seen.
//
//go:embed programs/chain.c
var chainSource []byte

// What the program's source says, too.
const (
	chainPages = 512
	chainWords = 512
	chainEvery = 100
)

func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// chain is what the program prints, without the last end of line.
func chain(ranks, rounds int) string {
	has, pages := make([]uint64, ranks), make([][chainPages][chainWords]uint64, ranks)
	for r := range has {
		has[r] = mix(uint64(r) + 1)
	}
	var b strings.Builder
	say := func(round int, of []uint64) {
		sum := uint64(0)
		for _, x := range of {
			sum += x
		}
		fmt.Fprintf(&b, "%d %016x\n", round, sum)
	}
	for round := 1; round <= rounds; round++ {
		before := append([]uint64(nil), has...)
		for r := range has {
			has[r] = mix(before[r] + 3*before[(r+ranks-1)%ranks] + uint64(round))
			page := &pages[r][round%chainPages]
			for k := range page {
				page[k] = 5*page[k] + has[r] + uint64(k)
			}
		}
		if round%chainEvery == 0 {
			say(round, has)
		}
	}
	ends := make([]uint64, ranks)
	for r := range ends {
		for p := range pages[r] {
			for k := range pages[r][p] {
				ends[r] = mix(ends[r] + pages[r][p][k])
			}
		}
	}
	say(0, ends)
	return strings.TrimSuffix(b.String(), "\n")
}
