package xen

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host/port"
	"pagurus/act/xen/bus"
	"pagurus/internal/note"
)

// The names of the programs that keep a guest, and that end its domain.
const (
	wardenName = "pagurus-xen-warden"
	minderName = "pagurus-xen-minder"
)

// Shims are the processes beside each guest. They are parts of pagurus-daemon.
var Shims = map[string]func([]string) error{wardenName: keepGuest, minderName: mindWarden, saverName: save, linkName: plug(linkName), diskName: plug(diskName)}

// warden is the process of one guest in dom0, as QEMU is that of a virtual machine: it makes the domain, has its consoles, sends
// and receives it, and ends with it. It outlives the agent, which asks it over a socket. Whoever kills it, an agent that is there or
// not, has ended the guest: its minder (minder.go) destroys the domain.
type warden struct {
	spec spec
	life context.Context
	end  context.CancelFunc
	link linker
	held *port.FrameQueue // the frames for a guest that comes; nil: none wait

	storing sync.Mutex
	store   *bus.Store

	acting sync.Mutex // held by what begins a copy, suspends or resumes

	mu     sync.Mutex // guards what follows
	status status
	out    *outgoing // the last copy from here; nil: none
}

// keepGuest keeps the guest whose folder is this process's. It begins when its agent says so, and ends with an agent that dies before: until then
// no record names it.
func keepGuest([]string) error {
	if line, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil || line != begins {
		return errors.New("the agent has ended before it noted this process")
	}
	k := &warden{}
	if err := note.Load(specFile, &k.spec); err != nil {
		return err
	}
	k.life, k.end = context.WithCancel(context.Background())
	defer k.end()
	minded, err := startMinder()
	if err != nil {
		return err
	}
	defer minded.Close()
	if err := linkPlugs(); err != nil {
		return err
	}
	k.status.Stage = making
	if err := k.listen(); err != nil {
		return err
	}
	root, err := attachRoot(k.spec.Root)
	if err == nil {
		defer root.Close()
		err = os.WriteFile(configFile, []byte(k.spec.config(root.Name())), 0o600)
	}
	if err == nil {
		_, err = k.xenstore()
	}
	switch {
	case err != nil:
		k.breaks(err)
	case k.spec.Incoming != nil:
		go k.receive()
	default:
		go k.boot()
	}
	return k.watch()
}

// begins is the agent's word to a warden.
const begins = "begin\n"

// listen opens the warden's sockets.
func (k *warden) listen() error {
	for name, serve := range map[string]func(net.Conn){controlSocket: k.control, linkSocket: k.link.serve} {
		l, err := net.Listen("unix", name)
		if err != nil {
			return err
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					time.Sleep(acceptPause) // no descriptors
					continue
				}
				go serve(conn)
			}
		}()
	}
	return nil
}

const acceptPause = 100 * time.Millisecond

// attachRoot makes a disk of an image's file. The kernel removes it when neither this process nor a guest has it.
func attachRoot(path string) (*os.File, error) {
	image, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the image: %w", err)
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: load the module loop", err)
	}
	defer control.Close()
	for range 64 { // another process may take the number first
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		disk, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
		if err = unix.IoctlLoopConfigure(int(disk.Fd()), &config); err == nil {
			return disk, nil
		}
		disk.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("make a disk of the image: %w", err)
		}
	}
	return nil, errors.New("every free loop device is taken at once by another process")
}

// xenstore is the connection to xenstored, which is made again after it has ended.
func (k *warden) xenstore() (*bus.Store, error) {
	k.storing.Lock()
	defer k.storing.Unlock()
	if k.store != nil {
		select {
		case <-k.store.Over():
			k.store.Close()
			k.store = nil
		default:
			return k.store, nil
		}
	}
	s, err := bus.OpenStore()
	if err != nil {
		return nil, err
	}
	if err := s.Watch(bus.Domains); err != nil {
		s.Close()
		return nil, err
	}
	k.store = s
	return s, nil
}

// now returns what is known.
func (k *warden) now() status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.status
	if k.out != nil {
		p := k.out.progress
		s.Copy = &p
	}
	return s
}

// enters notes that the guest is at a stage.
func (k *warden) enters(s stage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Stage = s
}

// breaks notes that there will be no guest.
func (k *warden) breaks(why error) {
	fmt.Fprintln(os.Stderr, why)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Stage, k.status.Why = broken, why.Error()
}

// control answers an agent's questions.
func (k *warden) control(conn net.Conn) {
	defer conn.Close()
	in, out := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	for {
		var q question
		if in.Decode(&q) != nil {
			return
		}
		a := answer{}
		if err := k.does(q); err != nil {
			a.Refused = err.Error()
		}
		a.Status = k.now()
		if out.Encode(a) != nil {
			return
		}
	}
}

// does what is asked. After an error it was not done.
func (k *warden) does(q question) error {
	switch q.Ask {
	case askCopy, askRun, askSuspend:
		k.acting.Lock()
		defer k.acting.Unlock()
	}
	switch q.Ask {
	case askStatus:
		return nil
	case askCopy:
		return k.copies(q.Copy)
	case askCancel:
		return k.cancels()
	case askSwitch:
		return k.switches(q.Copy)
	case askRun:
		return k.runs()
	case askSuspend:
		return k.suspends()
	}
	return fmt.Errorf("%q is not known here: the agent is newer than this guest's warden", q.Ask)
}

// runs lets the guest run, which a move may have to be cancelled for.
func (k *warden) runs() error {
	switch s := k.now(); s.Stage {
	case running, suspended:
		if err := k.cancels(); err != nil {
			return err
		}
		return k.spec.Tools.pause(k.life, k.spec.Domain, false) // it may be, after an error
	case yielding:
		if err := k.spec.Tools.pause(k.life, k.spec.Domain, false); err != nil {
			return err
		}
		k.enters(running)
		return nil
	case whole:
		if err := k.spec.Tools.run(k.life, "unpause", k.spec.Domain); err != nil {
			return err
		}
		k.enters(running)
		go k.lets()
		return nil
	case left:
		return errors.New("it is with the target of a migration that cannot be undone")
	case broken:
		return fmt.Errorf("it is not here: %s", s.Why)
	default:
		return fmt.Errorf("%s: it is %s", notWhole, s.Stage)
	}
}

// notWhole begins what a warden says of a guest that has not come.
const notWhole = "not all of it is here"

// boot makes the domain.
func (k *warden) boot() {
	err := k.frees()
	if err == nil {
		err = k.spec.Tools.run(k.life, "create", "-q", "-e", configFile)
	}
	if err != nil {
		k.breaks(err)
		return
	}
	if err := k.haveConsoles(); err != nil {
		k.breaks(err)
		return
	}
	k.enters(running)
}

// haveConsoles finds the domain that xl made, and begins to have its consoles.
func (k *warden) haveConsoles() error {
	s, err := k.xenstore()
	if err != nil {
		return err
	}
	number, err := s.Named(k.spec.Domain)
	if err == nil && number == 0 {
		err = fmt.Errorf("xl made the domain %s, and it is gone", k.spec.Domain)
	}
	if err == nil {
		err = bus.OfferConsole(s, number)
	}
	if err != nil {
		return err
	}
	go k.link.have(k.life, k.xenstore, number)
	go keepConsole(k.life, s, number)
	return nil
}

const lookEvery = 10 * time.Second

// watch waits for the end of the guest, and notes it.
func (k *warden) watch() error {
	for {
		var changed <-chan string
		s, err := k.xenstore()
		if err == nil {
			changed = s.Events()
		}
		if why := k.over(); why != "" {
			fmt.Fprintln(os.Stderr, "the domain has ended:", why)
			return errors.Join(note.Replace(endingFile, ending{why}), k.spec.Tools.destroy(k.spec.Domain))
		}
		select {
		case <-changed:
		case <-time.After(lookEvery):
		}
	}
}

// over returns how the domain ended; empty: it has not, or that cannot be told now.
func (k *warden) over() string {
	switch k.now().Stage {
	case making, waiting, arriving, broken:
		return ""
	}
	all, err := k.spec.Tools.list(k.life)
	if err != nil {
		return ""
	}
	d, is := find(all, k.spec.Domain)
	switch {
	case !is:
		return destroyed
	case d.Reason == suspendReason:
		return "" // for its move
	}
	return reasons[d.Reason]
}

// oneLine makes text one line of a log.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
