package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// gapFiles is where the tracing library keeps what it sees; a file a rank.
const gapFiles = "/dev/shm/pagurus-trace.*"

// The layout of such a file, as in trace.c; its test reads one that the
// library wrote.
const (
	traceMagic   = "PGTRACE1"
	traceSeqAt   = 8  // u32: odd while the file is being changed
	traceRankAt  = 12 // i32
	traceCountAt = 16 // u32: gaps that are valid
	traceGapsAt  = 64
	traceGapSize = 24 // i64 start ns, i64 duration ns, u32 inside, u32 0
	traceGapsMax = 64
	traceTries   = 20
)

// readGaps gives the gaps of all files of a pattern, longest first.
func readGaps(pattern string) ([]fleet.Gap, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var all []fleet.Gap
	for _, path := range paths {
		gaps, err := readTrace(path)
		if err != nil {
			say("trace %s: %v", path, err)
			continue // a program may have put anything there
		}
		all = append(all, gaps...)
	}
	slices.SortFunc(all, func(a, b fleet.Gap) int { return int(min(max(b.Took-a.Took, -1), 1)) })
	return all, nil
}

// readTrace reads one file, again if the rank was just changing it.
func readTrace(path string) ([]fleet.Gap, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	b := make([]byte, traceGapsAt+traceGapsMax*traceGapSize)
	seq := make([]byte, 4)
	for range traceTries {
		if _, err := f.ReadAt(b, 0); err != nil {
			return nil, err
		}
		if string(b[:len(traceMagic)]) != traceMagic {
			return nil, errors.New("is not of this version")
		}
		if _, err := f.ReadAt(seq, traceSeqAt); err != nil {
			return nil, err
		}
		now := binary.LittleEndian.Uint32(seq)
		if now&1 == 0 && now == binary.LittleEndian.Uint32(b[traceSeqAt:]) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	var gaps []fleet.Gap
	count := min(binary.LittleEndian.Uint32(b[traceCountAt:]), traceGapsMax)
	for i := range int(count) {
		g := b[traceGapsAt+i*traceGapSize:]
		gaps = append(gaps, fleet.Gap{
			Rank:  int(int32(binary.LittleEndian.Uint32(b[traceRankAt:]))),
			At:    time.Unix(0, int64(binary.LittleEndian.Uint64(g))),
			Took:  time.Duration(binary.LittleEndian.Uint64(g[8:])),
			InMPI: binary.LittleEndian.Uint32(g[16:]) != 0,
		})
	}
	return gaps, nil
}
