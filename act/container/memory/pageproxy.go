package memory

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"pagurus/act/container/shim"
)

// A container that runs before all its memory is in place depends on the process that
// holds that memory. That process must outlive a killed agent. So a process made for this
// gives the memory to CRIU. It is a part of this program and ends when its work is done.

// pageProxyName is the name under which the program runs as a page proxy.
const pageProxyName = "pagurus-page-proxy"

// The descriptors that the process is given: a connection to the process that started it,
// its end of CRIU's socket, the two of ProxyFiles, and then the memory of each process.
const (
	proxyOrders = 3 + iota
	proxySocket
	proxyVerdict
	proxyRest
	proxyMemory
)

// ProxyFiles are the files that a page proxy is given beside the memory.
type ProxyFiles struct {
	Verdict *os.File // to which it writes Fetched at the end, or why some memory never arrives
	Rest    *os.File // a connection to the page server, for joinServer; nil: there are no lazy pages
}

// Close closes the files. The page proxy has descriptors of its own.
func (l *ProxyFiles) Close() {
	_ = l.Verdict.Close()
	if l.Rest != nil {
		_ = l.Rest.Close()
	}
}

// Fetched is the verdict when all memory has been fetched and is in place.
const Fetched = "all"

// proxied describes the memory of one process.
type proxied struct {
	Process uint32
	Blocks  []proxiedBlock
}

// proxiedBlock is a block with its number.
type proxiedBlock struct {
	Number             uint64
	Filled, Zero, Lazy [blockPages / 64]uint64
}

// PageProxy is a page proxy, as the process that started it sees it.
type PageProxy struct {
	PID int
	// Socket is CRIU's end of its connection to the page proxy, and Own is the proxy's
	// end. `criu lazy-pages` inherits both. With Own it waits for ever if the page proxy
	// ends, and so do the processes whose memory is missing. Otherwise it would end, and
	// they would read zeros.
	Socket, Own *os.File

	orders net.Conn
	to     *gob.Encoder
	from   *gob.Decoder
}

// holdUffdsLimit is how long the page proxy may take to answer HoldUffds.
const holdUffdsLimit = 10 * time.Second

// HoldUffds makes the page proxy hold the userfaultfds of CRIU's process pid, now and
// from now on, until that process has closed them. It returns how many there are now. It
// may be called again.
func (k *PageProxy) HoldUffds(pid int) (held int, err error) {
	var a Answer
	err = k.orders.SetDeadline(time.Now().Add(holdUffdsLimit))
	if err == nil {
		err = k.to.Encode(uffdOrder{PID: pid})
	}
	if err == nil {
		err = k.from.Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return 0, fmt.Errorf("have the page proxy hold the userfaultfds: %w", err)
	}
	return a.Held, nil
}

// Close closes the files. The page proxy keeps running.
func (k *PageProxy) Close() {
	_ = k.Socket.Close()
	_ = k.Own.Close()
	_ = k.orders.Close()
}

// StartProxy starts a page proxy: a process that does what Serve does, with the same
// memory, until CRIU has put all of it in place. The proxy outlives this process and
// writes a verdict. If the verdict is not Fetched and HoldUffds was called, the proxy
// runs until it is killed. Afterwards the Store must not be used any more, but may be
// closed. The caller keeps late. After an error no page proxy runs.
func (s *Store) StartProxy(late *ProxyFiles) (k *PageProxy, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	k = &PageProxy{}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start the process that keeps memory: %w", err)
			for _, f := range []*os.File{k.Socket, k.Own} {
				_ = f.Close() // does nothing if f is nil
			}
			if k.orders != nil {
				_ = k.orders.Close()
			}
			k = nil
		}
	}()
	conn, theirs, err := SocketPair()
	if err != nil {
		return k, err
	}
	defer conn.Close()
	k.Socket = theirs
	if k.Own, err = conn.(*net.UnixConn).File(); err != nil {
		return k, err
	}
	var its *os.File
	if k.orders, its, err = SocketPair(); err != nil {
		return k, err
	}
	cmd := exec.Command(shim.Program())
	cmd.Args, cmd.Dir, cmd.Env = []string{pageProxyName}, "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{its, k.Own, late.Verdict, late.Rest}
	if late.Rest != nil {
		cmd.Args = append(cmd.Args, "lazy")
	}
	var all []proxied
	for number, m := range s.memories {
		cmd.ExtraFiles = append(cmd.ExtraFiles, m.file)
		all = append(all, m.entrusted(number))
	}
	err = cmd.Start()
	if err := errors.Join(err, its.Close()); err != nil {
		return k, err
	}
	go func() { _ = cmd.Wait() }()
	k.PID, k.to, k.from = cmd.Process.Pid, gob.NewEncoder(k.orders), gob.NewDecoder(k.orders)
	if err := k.to.Encode(all); err != nil {
		return k, errors.Join(err, cmd.Process.Kill())
	}
	return k, nil
}

func (m *processMemory) entrusted(number uint32) proxied {
	k := proxied{Process: number}
	for n, b := range m.blocks {
		k.Blocks = append(k.Blocks, proxiedBlock{n, b.filled, b.zero, b.lazy})
	}
	return k
}

// serveProxied is all that the page proxy does. It has an argument if pages are lazy.
func serveProxied(args []string) error {
	orders, err := inherited(proxyOrders)
	if err != nil {
		return err
	}
	var all []proxied
	told := gob.NewDecoder(orders)
	if err := told.Decode(&all); err != nil {
		return fmt.Errorf("be told what memory there is: %w", err)
	}
	s := NewStore()
	for i, k := range all {
		m := &processMemory{number: k.Process, file: os.NewFile(uintptr(proxyMemory+i), "memory"), blocks: map[uint64]*block{}}
		for _, b := range k.Blocks {
			m.blocks[b.Number] = &block{filled: b.Filled, zero: b.Zero, lazy: b.Lazy}
		}
		s.memories[k.Process] = m
	}
	conn, err := inherited(proxySocket)
	if err != nil {
		return fmt.Errorf("reach CRIU: %w", err)
	}
	h := &HolderProcess{}
	go h.Obey(told, gob.NewEncoder(orders))
	if len(args) == 0 {
		_, err := s.serveAndReport(conn, h)
		return err
	}
	rest, err := joinServer(os.NewFile(proxyRest, "rest"))
	if err != nil {
		return err
	}
	s.rest = rest
	if all, err := s.serveAndReport(conn, h); !all {
		return err
	}
	return rest.Finish()
}

// inherited opens a connection among the inherited descriptors.
func inherited(number uintptr) (net.Conn, error) {
	file := os.NewFile(number, "connection")
	conn, err := net.FileConn(file)
	return conn, errors.Join(err, file.Close())
}

// serveAndReport serves memory and writes the verdict; all reports whether it is Fetched.
// Otherwise serveAndReport does not return as long as a process could read zeros.
func (s *Store) serveAndReport(conn net.Conn, h *HolderProcess) (all bool, err error) {
	err = s.serve(context.Background(), conn, h.Parted)
	said := Fetched
	if err != nil {
		said = err.Error()
	}
	if _, err := os.NewFile(proxyVerdict, "verdict").WriteString(said); err != nil {
		h.HoldForever()
		return false, err
	}
	if err == nil {
		return true, nil
	}
	// As long as CRIU waits for an answer, the processes wait for their memory.
	_, _ = io.Copy(io.Discard, conn)
	h.HoldForever()
	return false, err
}
