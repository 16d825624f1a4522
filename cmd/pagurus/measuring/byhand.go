package measuring

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"pagurus/cmd/roles"
	"pagurus/fleet"
)

// endLimit is how long an end may take to remove what it has made.
const endLimit = time.Minute

// handStart is what both ranks run by hand: it undoes the time-out of TCP that Pagurus's guests
// have, and takes the program from its own command line, since the guests share no files.
const handStart = `f=/proc/sys/net/ipv4/tcp_rto_min_us; [ ! -e $f ] || echo 200000 >$f
echo "$1" | base64 -d | gunzip >/tmp/busy && chmod 700 /tmp/busy && shift && exec /tmp/busy "$@"`

// byHand moves the guest as a person does who has QEMU.
func (c *contest) byHand(ctx context.Context) (figures map[string]float64, err error) {
	command, err := c.handCommand()
	if err != nil {
		return nil, err
	}
	// The guest that stays is the first one, which has the output.
	ends := map[fleet.HostID]*handEnd{}
	begin := map[fleet.HostID][]int{}
	begin[c.stay.ID] = append(begin[c.stay.ID], 0)
	begin[c.from.ID] = append(begin[c.from.ID], 1)
	for _, h := range c.hosts() {
		end, err := c.reach(ctx, h, begin[h.ID], command)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, end.close()) }()
		ends[h.ID] = end
	}
	from, to, first := ends[c.from.ID], ends[c.to.ID], ends[c.stay.ID]
	for id := range begin {
		if _, err := ends[id].ask(roles.HandOrder{Do: roles.HandStart}); err != nil {
			return nil, err
		}
	}
	if _, err := first.ask(roles.HandOrder{Do: roles.HandRun}); err != nil {
		return nil, err
	}
	var text strings.Builder
	said := func() (string, error) {
		a, err := first.ask(roles.HandOrder{Do: roles.HandRead, Offset: int64(text.Len())})
		text.WriteString(a.Said)
		return text.String(), err
	}
	for !strings.Contains(text.String(), "START") {
		if _, err := said(); err != nil {
			return nil, err
		}
	}
	var took time.Duration
	var sent roles.HandAnswer
	stall, err := stalled(ctx, said, func() error {
		begun := time.Now()
		at, err := to.ask(roles.HandOrder{Do: roles.HandReceive})
		if err == nil {
			sent, err = from.ask(roles.HandOrder{Do: roles.HandSend, To: at.Listen})
		}
		took = time.Since(begun)
		return err
	})
	if err != nil {
		return nil, err
	}
	figures = figuresOf(took, sent.Downtime, stall, sent.Sent)
	figures["command_s"] = sent.Total.Seconds() // of that, since the command, by QEMU
	return figures, nil
}

// handCommand is the command of both ranks, with the program in it.
func (c *contest) handCommand() ([]string, error) {
	program, err := os.ReadFile(c.programFile())
	if err != nil {
		return nil, fmt.Errorf("bring the program to guests by hand: %w", err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err = w.Write(program)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("bring the program to guests by hand: %w", err)
	}
	return append([]string{"sh", "-c", handStart, "busy", base64.StdEncoding.EncodeToString(packed.Bytes())}, c.words()...), nil
}

// handEnd is an end of a move by hand: the agent's program on a host, which removes all that it
// has made when its input is closed.
type handEnd struct {
	host    fleet.HostID
	process *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	notes   bytes.Buffer
	unhook  func() bool
	ctx     context.Context
}

// reach begins an end on a host, where some of the guests begin.
func (c *contest) reach(ctx context.Context, at fleet.Host, guests []int, command []string) (_ *handEnd, err error) {
	s := roles.HandSetting{
		Image: c.image, Guests: guests, Need: fleet.Resources{CPUs: 1, MemoryBytes: c.memory}, Command: command,
		Accelerator: at.Facts.Abilities[fleet.VM].Accelerator,
	}
	if cpu := at.Facts.Abilities[fleet.VM].Model; cpu != fleet.HostCPU {
		s.CPU = cpu
	}
	for _, h := range c.hosts() {
		address, err := netip.ParseAddr(h.Facts.Address)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the address of host %s: %w", h.ID, err)
		case h.ID == at.ID:
			s.Here = address
		default:
			s.Others = append(s.Others, address)
		}
	}
	program, err := c.agent(at)
	if err != nil {
		return nil, err
	}
	words := append(filled(c.via, at), program, roles.ByHandVerb)
	e := &handEnd{host: at.ID, process: exec.Command(words[0], words[1:]...), ctx: ctx}
	e.process.Stderr = &e.notes
	e.process.WaitDelay = time.Second
	e.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is passed on by closing its input
	if e.in, err = e.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := e.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.out = json.NewDecoder(out)
	if err := e.process.Start(); err != nil {
		return nil, fmt.Errorf("reach host %s with %q: %w", at.ID, strings.Join(words, " "), err)
	}
	e.unhook = context.AfterFunc(ctx, func() { _ = e.in.Close() })
	if _, err := e.ask(s); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// filled are the words of --via for a host.
func filled(via []string, at fleet.Host) (words []string) {
	names := strings.NewReplacer("{host}", string(at.ID), "{address}", at.Facts.Address)
	for _, w := range via {
		words = append(words, names.Replace(w))
	}
	return words
}

// ask has an end do something.
func (e *handEnd) ask(what any) (a roles.HandAnswer, err error) {
	if err = json.NewEncoder(e.in).Encode(what); err == nil {
		err = e.out.Decode(&a)
	}
	switch {
	case e.ctx.Err() != nil:
		err = context.Cause(e.ctx)
	case err != nil:
		err = fmt.Errorf("host %s, by hand: %w", e.host, err)
	case a.Error != "":
		err = fmt.Errorf("host %s, by hand: %s", e.host, a.Error)
	}
	return a, err
}

// close has an end remove all of it, and waits for that.
func (e *handEnd) close() error {
	e.unhook()
	_ = e.in.Close()
	late := time.AfterFunc(endLimit, func() { _ = e.process.Process.Kill() })
	defer late.Stop()
	var more roles.HandAnswer
	for e.out.Decode(&more) == nil { // it may answer yet
	}
	if err := e.process.Wait(); err != nil {
		return fmt.Errorf("host %s, by hand: %w: %s", e.host, err, strings.TrimSpace(e.notes.String()))
	}
	return nil
}
