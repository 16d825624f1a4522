package xen

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// saverName is the name under which xl starts libxl-save-helper, which sends a guest's memory and asks xl over a pipe to suspend
// the guest when its rounds are over. This one stands between the two: it hands their messages on, tells the warden how
// far the rounds are, and hands the request to suspend on only when the warden says so. xl knows nothing of that.
const saverName = "pagurus-xen-saver"

// The saver's surroundings, which come through xl.
const whoSaves = "PAGURUS_XEN_HELPER"

// What a saver and its warden say to each other, a line each.
const (
	saysHold = "hold"     // may the guest be suspended?
	saysPass = "progress" // and numbers: done, total and the round
	maySwap  = "go"
	mayNot   = "no"
)

// Kinds of messages between xl and libxl-save-helper (libxl_save_msgs_gen.pl).
const (
	msgProgress = 2
	msgSuspend  = 3
)

// save is the saver.
func save(args []string) error {
	helper := os.Getenv(whoSaves)
	if helper == "" {
		return errors.New("a guest is saved for a move alone")
	}
	c := exec.Command(helper, args...)
	c.Stderr = os.Stderr
	for fd := 3; fd < mostInherited; fd++ { // the stream is one of them, and keeps its number
		c.ExtraFiles = append(c.ExtraFiles, inherited(fd))
	}
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	if args[0] == "--save-domain" {
		var warden net.Conn
		if warden, err = net.Dial("unix", saverSocket); err == nil {
			err = (&saver{warden: warden, helper: c.Process, in: in, out: out}).serve()
		}
	} else {
		go func() { _, _ = io.Copy(in, os.Stdin) }()
		_, err = io.Copy(os.Stdout, out)
	}
	if err != nil {
		_ = c.Process.Signal(syscall.SIGTERM) // so it takes back what it began
	}
	return errors.Join(err, c.Wait())
}

// mostInherited is above every descriptor that xl gives its helper.
const mostInherited = 64

// inherited is a descriptor that this process was started with; nil: there is none of this number.
func inherited(fd int) *os.File {
	var st syscall.Stat_t
	if syscall.Fstat(fd, &st) != nil || !ours(fd) {
		return nil
	}
	return os.NewFile(uintptr(fd), "inherited")
}

// ours reports whether a descriptor was inherited: Go's own are closed when another program starts.
func ours(fd int) bool {
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
	return errno == 0 && flags&syscall.FD_CLOEXEC == 0
}

type saver struct {
	warden net.Conn
	helper *os.Process
	in     io.WriteCloser
	out    io.Reader
}

// serve hands messages on in both directions until the helper has ended.
func (s *saver) serve() error {
	defer s.warden.Close()
	words := make(chan string, 1)
	go func() {
		defer close(words)
		for lines := bufio.NewScanner(s.warden); lines.Scan(); {
			if lines.Text() == mayNot {
				_ = s.helper.Signal(syscall.SIGTERM) // it may be sending
			}
			words <- lines.Text()
		}
		_ = s.helper.Signal(syscall.SIGTERM) // the warden has ended
	}()
	go func() { // xl's answers, and its end
		_, _ = io.Copy(s.in, os.Stdin)
		s.in.Close()
	}()
	last, round := time.Time{}, -1
	for {
		m, err := readFrame(s.out)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch kind(m) {
		case msgSuspend:
			fmt.Fprintln(s.warden, saysHold)
			if <-words != maySwap {
				// As if xl had not been able to: the helper takes back what it began.
				if _, err := s.in.Write(make([]byte, 4)); err != nil {
					return err
				}
				continue
			}
		case msgProgress:
			if p, is := parseProgress(m); is && (p.Round != round || time.Since(last) > tellEvery) {
				last, round = time.Now(), p.Round
				fmt.Fprintln(s.warden, saysPass, p.Done, p.Total, p.Round)
			}
		}
		if err := writeFrame(os.Stdout, m); err != nil {
			return err
		}
	}
}

const tellEvery = 100 * time.Millisecond

// readFrame reads one message of the helper's: its length in two bytes, and its body.
func readFrame(from io.Reader) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	m := make([]byte, binary.LittleEndian.Uint16(head[:]))
	if _, err := io.ReadFull(from, m); err != nil {
		return nil, fmt.Errorf("libxl-save-helper: %w", err)
	}
	return m, nil
}

func writeFrame(to io.Writer, m []byte) error {
	_, err := to.Write(append(binary.LittleEndian.AppendUint16(nil, uint16(len(m))), m...))
	return err
}

// kind is a message's; 0: it has none.
func kind(m []byte) int {
	if len(m) < 2 {
		return 0
	}
	return int(binary.LittleEndian.Uint16(m))
}

// passed is how far a round is, in pages.
type passed struct {
	Done, Total uint64
	Round       int // the first is 1; 0: not known
}

// parseProgress reads a message about pages: two texts, each with its length, and two numbers.
func parseProgress(m []byte) (p passed, is bool) {
	rest := m[2:]
	var texts [2]string
	for i := range texts {
		if len(rest) < 4 {
			return p, false
		}
		n := binary.LittleEndian.Uint32(rest)
		if uint64(n) > uint64(len(rest)-4) {
			return p, false
		}
		texts[i] = strings.TrimRight(string(rest[4:4+n]), "\x00")
		rest = rest[4+n:]
	}
	if len(rest) != 16 {
		return p, false
	}
	p.Done, p.Total = binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])
	for _, text := range texts {
		if _, after, found := strings.Cut(text, "iteration "); found {
			if _, err := fmt.Sscan(after, &p.Round); err == nil {
				p.Round++ // libxl counts from 0
			}
		}
	}
	return p, true
}
