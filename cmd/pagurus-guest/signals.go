package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// A signal goes directly to the ranks in every guest of the job. mpirun passes on few
// signals, takes SIGTERM as an order to kill its ranks within a second or two, and dies of
// most others. Without MPI the signal goes to the program.

// toldMost is how many signals are remembered, so that none is delivered twice.
const toldMost = 256

// told remembers the delivered signals, and to how many processes each went.
type told struct {
	mu    sync.Mutex
	order []string
	to    map[string]int
}

// once delivers a signal unless it has been delivered. One that reached no process does not
// count.
func (t *told) once(id string, deliver func() int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, done := t.to[id]; done {
		return n
	}
	n := deliver()
	if n == 0 {
		return 0
	}
	if t.to == nil {
		t.to = map[string]int{}
	}
	if t.order = append(t.order, id); len(t.order) > toldMost {
		delete(t.to, t.order[0])
		t.order = t.order[1:]
	}
	t.to[id] = n
	return n
}

// Signal sends a signal to a program's ranks in all guests of its job, once for its ID. One
// that ends the program starts its grace. After an error some ranks may have it; call again.
func (m *member) Signal(ctx context.Context, id string, s fleet.Signal) error {
	p, err := m.program(id)
	if err != nil {
		return err
	}
	if p.over() {
		if s.Ends {
			return nil
		}
		return errors.New("the program has ended")
	}
	if s.Ends {
		p.endAfter(s.Grace, func() { m.kill(p) })
	}
	m.mu.Lock()
	setup := m.setting
	m.mu.Unlock()
	reached := m.deliver(s)
	if setup != nil {
		n, err := tellPeers(ctx, setup.setup, s)
		reached += n
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err() // a moving guest answers later
			}
			return err
		}
	}
	if reached == 0 && s.Ends {
		p.end(m.children, unix.SIGTERM) // it is still starting its ranks, or ending them
	} else if reached == 0 {
		return errors.New("the program has not started its ranks yet; try again in a moment")
	}
	return nil
}

// deliver sends a signal to the ranks in this guest, once for its ID, and returns their
// number.
func (m *member) deliver(s fleet.Signal) int {
	return m.told.once(s.ID, func() (n int) {
		for _, pid := range m.ranks(tasks()) {
			if unix.Kill(pid, unix.Signal(s.Number)) == nil {
				n++
			}
			if s.Ends {
				unix.Kill(pid, unix.SIGCONT) // a stopped one would not react
			}
		}
		return n
	})
}

// kill kills a program whose grace is over, and its remaining processes.
func (m *member) kill(p *program) {
	if !firstOfAll() {
		p.end(m.children, unix.SIGKILL)
		return
	}
	unix.Kill(-1, unix.SIGKILL)
}

// task is a process of the job in this guest.
type task struct {
	pid, parent, group int
	launcher           bool // it starts ranks, here or elsewhere
}

// tasks gives the processes in this guest that are programs.
func tasks() (all []task) {
	names, _ := filepath.Glob("/proc/[1-9]*/stat")
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		stat, _ := os.ReadFile(name) // empty if it has gone meanwhile
		if err != nil || pid == os.Getpid() || !isUser(string(stat)) {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		first, _, _ := strings.Cut(string(command), "\x00")
		open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
		f := strings.Fields(string(stat)[end+1:])
		t := task{pid: pid, launcher: launches(string(stat)[open+1:end]) || first == execName}
		t.parent, _ = strconv.Atoi(f[1])
		t.group, _ = strconv.Atoi(f[2])
		all = append(all, t)
	}
	return all
}

// launches reports whether a process name belongs to mpirun: of Open MPI 4 and 5, of MPICH,
// or the remote start.
func launches(name string) bool {
	return name == "rsh" || slices.ContainsFunc([]string{"mpirun", "mpiexec", "prte", "orte", "orted", "hydra_"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// ranks gives the processes that should get a signal: those that a launcher started, the
// programs launched here, and processes in the same group as one of them, as with a terminal
// and mpirun.
func (m *member) ranks(all []task) (pids []int) {
	launcher, group := map[int]bool{}, map[int]bool{}
	for _, t := range all {
		launcher[t.pid] = t.launcher
	}
	m.mu.Lock()
	for _, p := range m.programs {
		if !p.over() && p.run.pid != 0 {
			group[p.run.pid] = true // each leads a session
		}
	}
	m.mu.Unlock()
	for _, t := range all {
		if launcher[t.parent] && t.group == t.pid {
			group[t.pid] = true
		}
	}
	for _, t := range all {
		if !t.launcher && (launcher[t.parent] || group[t.group]) {
			pids = append(pids, t.pid)
		}
	}
	return pids
}

// tellPeers sends a signal to the job's other guests, and returns how many ranks they have.
// After an error not all have it.
func tellPeers(ctx context.Context, setup fleet.Setup, s fleet.Signal) (reached int, err error) {
	type answer struct {
		reached int
		err     error
	}
	answers := make(chan answer)
	asked := 0
	for _, p := range setup.Peers {
		if p.Addr == setup.Addr {
			continue
		}
		asked++
		go func() {
			n, err := tellPeer(ctx, p, s)
			answers <- answer{n, err}
		}()
	}
	var failures []error
	for range asked {
		a := <-answers
		reached += a.reached
		failures = append(failures, a.err)
	}
	return reached, errors.Join(failures...)
}

func tellPeer(ctx context.Context, p fleet.Peer, s fleet.Signal) (reached int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("passing the signal on to %s: %w", p.Hostname, err)
		}
	}()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(p.Addr, remotePort).String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })()
	line, err := json.Marshal(remoteRequest{Signal: &s})
	if err != nil {
		return 0, err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return 0, err
	}
	kind, content, err := receive(bufio.NewReader(conn))
	if err != nil {
		return 0, err
	}
	if kind != sendExit || len(content) != 4 {
		return 0, errors.New("it did not understand")
	}
	return int(binary.BigEndian.Uint32(content)), nil
}
