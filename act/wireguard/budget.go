package wireguard

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// The nice values of wireguard-go. Ranks wait for messages without sleeping, on all CPUs; with their priority packets would wait for time
// slices of theirs to end. But a copy of a guest is a stream, and with a high priority it would run before all guests for as long as it takes.
const (
	before = -19 // guests, for their frames and whatever is short
	beside = 0   // guests, for streams of hosts
)

// A stream is what exceeds this. Passing it takes wireguard-go some 3 ms at once, and 3 % of a CPU.
const (
	mostAtOnce = 1 << 20  // bytes
	mostRate   = 10 << 20 // bytes a second
)

// budget counts what hosts send each other by TCP, and says with which priority it passes.
type budget struct {
	tun.Device
	nice func(value int)

	mu    sync.Mutex
	left  int // bytes; negative: as much too many
	at    time.Time
	spent bool
}

func withBudget(link tun.Device) *budget {
	return &budget{Device: link, left: mostAtOnce, at: time.Now(), nice: func(value int) {
		_ = unix.Setpriority(unix.PRIO_PGRP, 0, value) // all threads, in a process group of their own
	}}
}

// Read counts what goes out.
func (b *budget) Read(packets [][]byte, sizes []int, offset int) (n int, err error) {
	n, err = b.Device.Read(packets, sizes, offset)
	bytes := 0
	for i, size := range sizes[:n] {
		if isTCP(packets[i][offset : offset+size]) {
			bytes += size
		}
	}
	b.countBytes(bytes, time.Now())
	return n, err
}

// Write counts what came in.
func (b *budget) Write(packets [][]byte, offset int) (int, error) {
	bytes := 0
	for _, p := range packets {
		if isTCP(p[offset:]) {
			bytes += len(p) - offset
		}
	}
	b.countBytes(bytes, time.Now())
	return b.Device.Write(packets, offset)
}

// isTCP reports whether a packet is of a stream between hosts. Guests' streams are in VXLAN, which is UDP.
func isTCP(packet []byte) bool {
	return len(packet) > nextAt && packet[0]>>4 == 6 && packet[nextAt] == unix.IPPROTO_TCP
}

// countBytes counts bytes that pass now. What was spent comes back with time; priority comes back with half of it, so that it does not change with
// each packet.
func (b *budget) countBytes(bytes int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	since := min(max(0, now.Sub(b.at)), time.Second)
	b.at = now
	b.left = max(-mostAtOnce, min(mostAtOnce, b.left+int(since.Seconds()*mostRate))-bytes)
	switch {
	case !b.spent && b.left < 0:
		b.spent = true
		b.nice(beside)
	case b.spent && b.left >= mostAtOnce/2:
		b.spent = false
		b.nice(before)
	}
}
