package pages

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
)

// A container that runs before all its memory has come depends on whoever has
// that memory. It must outlive an agent that is killed, so memory is given to CRIU
// by a process made for that, which is this program again, and ends with its work.

// keeperName is what the program is called then.
const keeperName = "pagurus-keeper"

// The files that the process is given: what is known of the memory, its end of
// CRIU's socket, and then the memory of each process.
const (
	keeperIndex = 3 + iota
	keeperSocket
	keeperMemory
)

// entrusted is what is known of the memory of one process.
type entrusted struct {
	Process uint32
	Blocks  []entrustedBlock
}

// entrustedBlock is a block with its number.
type entrustedBlock struct {
	Number       uint64
	Filled, Zero [blockPages / 64]uint64
}

func init() {
	if len(os.Args) > 0 && os.Args[0] == keeperName {
		if err := serveEntrusted(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Entrust has a process of its own do what Serve does, with the same memory, and
// gives the other end of its connection for `criu lazy-pages` to inherit. The
// process ends when CRIU has all it wants or has ended; it outlives this one. The
// Store may be closed then, and is to be used no more. After an error there is no
// such process.
func (s *Store) Entrust() (criu *os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	conn, criu, err := SocketPair()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the process that keeps memory: %w", err), criu.Close())
			criu = nil
		}
	}()
	defer conn.Close()
	ours, err := conn.(*net.UnixConn).File()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	theirs, index, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer index.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir, cmd.Env = []string{keeperName}, "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{theirs, ours}
	var all []entrusted
	for number, m := range s.memories {
		cmd.ExtraFiles = append(cmd.ExtraFiles, m.file)
		all = append(all, m.entrusted(number))
	}
	err = cmd.Start()
	if err := errors.Join(err, theirs.Close()); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }()
	if err := gob.NewEncoder(index).Encode(all); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	return criu, nil
}

func (m *memory) entrusted(number uint32) entrusted {
	k := entrusted{Process: number}
	for n, b := range m.blocks {
		k.Blocks = append(k.Blocks, entrustedBlock{n, b.filled, b.zero})
	}
	return k
}

// serveEntrusted is the whole of that process.
func serveEntrusted() error {
	var all []entrusted
	index := os.NewFile(keeperIndex, "index")
	if err := gob.NewDecoder(bufio.NewReader(index)).Decode(&all); err != nil {
		return fmt.Errorf("be told what memory there is: %w", err)
	}
	index.Close()
	s := NewStore()
	for i, k := range all {
		m := &memory{number: k.Process, file: os.NewFile(uintptr(keeperMemory+i), "memory"), blocks: map[uint64]*block{}}
		for _, b := range k.Blocks {
			m.blocks[b.Number] = &block{filled: b.Filled, zero: b.Zero}
		}
		s.memories[k.Process] = m
	}
	socket := os.NewFile(keeperSocket, "socket")
	conn, err := net.FileConn(socket)
	if err := errors.Join(err, socket.Close()); err != nil {
		return fmt.Errorf("reach CRIU: %w", err)
	}
	return s.Serve(context.Background(), conn, nil)
}
