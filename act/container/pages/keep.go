package pages

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"pagurus/act/container/debt"
	"pagurus/act/container/shim"
)

// A container that runs before all its memory has come depends on whoever has
// that memory. It must outlive an agent that is killed, so memory is given to CRIU
// by a process made for that, a part of this program, which ends with its work.

// keeperName is what the program is called then.
const keeperName = "pagurus-keeper"

// The files that the process is given: what is known of the memory, its end of
// CRIU's socket, the two of Late, and then the memory of each process.
const (
	keeperIndex = 3 + iota
	keeperSocket
	keeperRest
	keeperVerdict
	keeperMemory
)

// Late is what a keeper is given of memory that is owed.
type Late struct {
	Rest    *os.File // a connection to who has it, for debt.Join
	Verdict *os.File // in which it says Fetched in the end, or why some of it never comes
}

// Fetched is the verdict when all has been fetched.
const Fetched = "all"

// entrusted is what is known of the memory of one process.
type entrusted struct {
	Process uint32
	Blocks  []entrustedBlock
}

// entrustedBlock is a block with its number.
type entrustedBlock struct {
	Number             uint64
	Filled, Zero, Owed [blockPages / 64]uint64
}

func init() {
	if len(os.Args) > 0 && os.Args[0] == keeperName {
		if err := serveEntrusted(len(os.Args) > 1); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Entrust has a process of its own, whose number it gives, do what Serve does, with the
// same memory, and gives the other end of its connection for `criu lazy-pages` to
// inherit. The process ends when CRIU has all it wants or has ended; it outlives this
// one. The Store may be closed then, and is to be used no more. late is nil if nothing
// is owed; its files stay the caller's. After an error there is no such process.
func (s *Store) Entrust(late *Late) (criu *os.File, keeper int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, errClosed
	}
	conn, criu, err := SocketPair()
	if err != nil {
		return nil, 0, err
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
		return nil, 0, err
	}
	defer ours.Close()
	theirs, index, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	defer index.Close()
	cmd := exec.Command(shim.Program())
	cmd.Args, cmd.Dir, cmd.Env = []string{keeperName}, "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{theirs, ours, nil, nil} // the last two it has only of what is late
	if late != nil {
		cmd.Args = append(cmd.Args, "late")
		cmd.ExtraFiles[keeperRest-keeperIndex], cmd.ExtraFiles[keeperVerdict-keeperIndex] = late.Rest, late.Verdict
	}
	var all []entrusted
	for number, m := range s.memories {
		cmd.ExtraFiles = append(cmd.ExtraFiles, m.file)
		all = append(all, m.entrusted(number))
	}
	err = cmd.Start()
	if err := errors.Join(err, theirs.Close()); err != nil {
		return nil, 0, err
	}
	go func() { _ = cmd.Wait() }()
	if err := gob.NewEncoder(index).Encode(all); err != nil {
		return nil, 0, errors.Join(err, cmd.Process.Kill())
	}
	return criu, cmd.Process.Pid, nil
}

func (m *memory) entrusted(number uint32) entrusted {
	k := entrusted{Process: number}
	for n, b := range m.blocks {
		k.Blocks = append(k.Blocks, entrustedBlock{n, b.filled, b.zero, b.owed})
	}
	return k
}

// serveEntrusted is the whole of that process.
func serveEntrusted(late bool) error {
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
			m.blocks[b.Number] = &block{filled: b.Filled, zero: b.Zero, owed: b.Owed}
		}
		s.memories[k.Process] = m
	}
	socket := os.NewFile(keeperSocket, "socket")
	conn, err := net.FileConn(socket)
	if err := errors.Join(err, socket.Close()); err != nil {
		return fmt.Errorf("reach CRIU: %w", err)
	}
	if late {
		return s.serveLate(conn)
	}
	return s.Serve(context.Background(), conn)
}

// serveLate serves memory of which some is owed, and gives its verdict.
func (s *Store) serveLate(conn net.Conn) error {
	rest, err := debt.Join(os.NewFile(keeperRest, "rest"))
	if err != nil {
		return err
	}
	s.rest = rest
	err = s.Serve(context.Background(), conn)
	said := Fetched
	if err != nil {
		said = err.Error()
	}
	if _, err := os.NewFile(keeperVerdict, "verdict").WriteString(said); err != nil {
		return err
	}
	if err == nil {
		return rest.Settle()
	}
	// As long as CRIU waits for an answer the processes wait for their memory; if it
	// ended they would find zeros.
	_, _ = io.Copy(io.Discard, conn)
	return err
}
