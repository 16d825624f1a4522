package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sniffer sees every frame on all links of the network namespace in which it was begun, and looks for a
// word in them.
type Sniffer struct {
	file *os.File
	word []byte
	over sync.WaitGroup
	seen Seen
	err  error
}

// Seen is what a Sniffer saw.
type Seen struct {
	Frames int // with and without the word
	Bytes  int64
	Clear  int    // frames that have the word
	Lost   uint32 // frames that were too many for it
}

const (
	everyFrame  = 0x0300 // ETH_P_ALL in network byte order
	sniffBuffer = 256 << 20
	// lastFrames is how long what is still queued when a Sniffer ends may take to be looked at.
	lastFrames = 10 * time.Second
)

// Sniff begins to look for a word.
func Sniff(word string) (*Sniffer, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, everyFrame)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for all frames: %w", err)
	}
	s := &Sniffer{file: os.NewFile(uintptr(fd), "frames"), word: []byte(word)}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sniffBuffer); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	s.over.Go(s.search)
	return s, nil
}

// search looks at frames until the deadline that End sets.
func (s *Sniffer) search() {
	frame := make([]byte, 128<<10)
	for {
		n, err := s.file.Read(frame)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			s.err = err
			return
		}
		s.seen.Frames++
		s.seen.Bytes += int64(n)
		if bytes.Contains(frame[:n], s.word) {
			s.seen.Clear++
		}
	}
}

// End looks at what came until now, and says what was seen.
func (s *Sniffer) End() (Seen, error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return Seen{}, err
	}
	for end := time.Now().Add(lastFrames); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left := 0
		if e := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }); e != nil || err != nil || left == 0 {
			break
		}
	}
	if e := raw.Control(func(fd uintptr) {
		var stats *unix.TpacketStats
		if stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			s.seen.Lost = stats.Drops
		}
	}); e != nil || err != nil {
		return Seen{}, errors.Join(e, err)
	}
	err = s.file.SetReadDeadline(time.Now())
	s.over.Wait()
	return s.seen, errors.Join(err, s.err, s.file.Close())
}
