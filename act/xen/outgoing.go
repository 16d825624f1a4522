package xen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pagurus/act/host"
	"pagurus/act/host/passage"
)

// Limits of a move from here.
const (
	cancelLimit = time.Minute      // for xl to take back what it began
	pingLimit   = 30 * time.Second // for the target to answer before the guest is suspended
	stallLimit  = 2 * time.Minute  // of a switch in which nothing is sent, nor heard
	lastLimit   = 30 * time.Second // for the target's last word
)

// outgoing is a copy from here. Its goroutine run alone changes it.
type outgoing struct {
	warden   *warden
	order    copyOrder
	progress progress // guarded by warden.mu
	cancel   chan struct{}
	change   chan struct{} // to switch
	cut      chan struct{} // closed when it has failed
	over     chan struct{} // closed when all has ended

	conn    net.Conn
	stream  *os.File // of what xl sends
	savers  net.Listener
	saver   net.Conn // guarded by warden.mu; nil: it has not come
	xl      *exec.Cmd
	said    tail // what xl complains of
	exited  chan error
	heard   chan word     // from the target
	holds   chan struct{} // when the saver asks for the suspension
	failing chan error    // of the stream
}

// word is what the target says.
type word struct {
	kind byte
	text string
	err  error
}

// copies begins a copy, unless it is under way.
func (k *warden) copies(order *copyOrder) error {
	if order == nil {
		return errors.New("it is not said whereto")
	}
	k.mu.Lock()
	before, at := k.out, k.status.Stage
	k.mu.Unlock()
	if before != nil && before.order.Migration == order.Migration && before.order.Place == order.Place {
		if why := k.now().Copy.Failure; why != "" {
			return fmt.Errorf("the copy is over: %s", why)
		}
		return nil
	}
	if before != nil {
		if err := k.cancels(); err != nil {
			return err
		}
		at = k.now().Stage
	}
	if at != running {
		return fmt.Errorf("it does not run here: it is %s", at)
	}
	o := &outgoing{
		warden: k, order: *order, cancel: make(chan struct{}, 1), change: make(chan struct{}, 1), cut: make(chan struct{}), over: make(chan struct{}),
		exited: make(chan error, 1), heard: make(chan word, 8), holds: make(chan struct{}, 1), failing: make(chan error, 1),
		progress: progress{Migration: order.Migration, Place: order.Place, Begun: time.Now()},
	}
	if err := o.beginMove(); err != nil {
		return err
	}
	k.mu.Lock()
	k.out = o
	k.mu.Unlock()
	go o.run()
	return nil
}

// cancels ends the copy under way, if the target has not been given the guest. Then the guest runs here.
func (k *warden) cancels() error {
	k.mu.Lock()
	o := k.out
	k.mu.Unlock()
	if o == nil {
		return nil
	}
	select {
	case o.cancel <- struct{}{}:
	default:
	}
	select {
	case <-o.over:
	case <-time.After(2 * cancelLimit):
		return errors.New("xl does not take back what it began")
	}
	switch s := k.now(); s.Stage {
	case running:
		return nil
	case left:
		return errors.New("it is with the target of a migration that cannot be undone")
	default:
		return fmt.Errorf("it does not run: it is %s: %s", s.Stage, s.Why)
	}
}

// switches begins the switch of a copy that is held.
func (k *warden) switches(order *copyOrder) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.out
	switch {
	case order == nil || o == nil || o.order.Migration != order.Migration:
		return errors.New("there is no copy of this migration under way")
	case o.progress.Failure != "" && !o.progress.Given:
		return errors.New(o.progress.Failure)
	case !o.progress.Held:
		return errors.New("the copy has not got so far")
	}
	select {
	case o.change <- struct{}{}:
	default: // once is enough
	}
	return nil
}

// streamTo is what xl sends the stream to: it says what xl's receiver says, and then nothing, for xl must never resume the guest because
// of an answer. cat holds the line that an answer would come on (4), for xl takes its end for one.
const streamTo = `printf 'xl migration receiver ready, send binary domain data.\n'; exec cat 4>&1 >&3`

// beginMove connects to the target and starts xl. After an error nothing of it is left.
func (o *outgoing) beginMove() (err error) {
	place, err := passage.ParsePlace(o.order.Place)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(o.warden.life, cancelLimit)
	defer stop()
	conns, err := place.Dial(ctx, o.order.Move, 1)
	if err != nil {
		return err
	}
	o.conn = conns[0]
	r, w, err := os.Pipe()
	if err != nil {
		return errors.Join(err, o.conn.Close())
	}
	defer w.Close()
	_, _ = os.Remove(saverName), os.Remove(saverSocket) // of an earlier move
	folder, err := os.Getwd()
	if err == nil {
		err = os.Symlink(fmt.Sprintf("/proc/%d/exe", os.Getpid()), saverName)
	}
	if err == nil {
		o.savers, err = net.Listen("unix", saverSocket)
	}
	o.xl = o.warden.spec.Tools.command(o.warden.life, "migrate", "-s", "", o.warden.spec.Domain, streamTo)
	o.xl.Env = []string{"LC_ALL=C", "PATH=" + folder + ":/usr/sbin:/usr/bin:/sbin:/bin", "LIBXL_SAVE_HELPER=" + saverName, whoSaves + "=" + o.warden.spec.Tools.Helper}
	o.xl.Stdout, o.xl.Stderr, o.xl.ExtraFiles = os.Stderr, &o.said, []*os.File{w}
	o.xl.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err == nil {
		err = o.xl.Start()
	}
	if err != nil {
		if o.savers != nil {
			o.savers.Close()
		}
		return errors.Join(err, o.conn.Close(), r.Close())
	}
	o.stream = r
	return nil
}

// run follows the move to its end.
func (o *outgoing) run() {
	defer close(o.over)
	go func() { o.exited <- o.xl.Wait() }()
	go o.listenSaver()
	go o.listenTarget()
	go o.carry()
	if err := o.lead(); err != nil {
		o.fail(err)
	}
	o.conn.Close()
	o.stream.Close()
	o.savers.Close()
	_ = o.tell(mayNot) // it has ended
}

// noteProgress changes the progress.
func (o *outgoing) noteProgress(change func(*progress)) {
	o.warden.mu.Lock()
	defer o.warden.mu.Unlock()
	change(&o.progress)
}

// seen is the progress now.
func (o *outgoing) seen() progress {
	o.warden.mu.Lock()
	defer o.warden.mu.Unlock()
	return o.progress
}

// lead leads the move as far as it goes. After an error the target has not been given the guest, or Given says that it was.
func (o *outgoing) lead() error {
	if err := o.await(o.holds); err != nil {
		return err
	}
	o.noteProgress(func(p *progress) { p.Held = true })
	if err := o.await(o.change); err != nil {
		return err
	}
	if err := o.ping(); err != nil {
		return err
	}
	o.noteProgress(func(p *progress) { p.SuspendedAt = time.Now() })
	o.warden.enters(suspended)
	if err := o.tell(maySwap); err != nil {
		return err
	}
	if err := o.awaitReady(); err != nil {
		return err
	}
	return o.give()
}

// await waits until it is time to go on, or returns why that will not be.
func (o *outgoing) await(time <-chan struct{}) error {
	select {
	case <-time:
		return nil
	case <-o.cancel:
		return errCancelled
	case err := <-o.exited:
		o.exited <- err
		return o.ended(err)
	case err := <-o.failing:
		return err
	case w := <-o.heard:
		return w.wrong()
	}
}

var errCancelled = errors.New("it was cancelled")

// ended is the error that xl has ended too soon. Nothing writes what it said by then.
func (o *outgoing) ended(err error) error {
	said := oneLine(string(o.said.last))
	if err == nil {
		return errors.New("xl migrate has ended too soon: " + said)
	}
	return fmt.Errorf("xl migrate has ended too soon: %w: %s", err, said)
}

// tell tells the saver something.
func (o *outgoing) tell(word string) error {
	o.warden.mu.Lock()
	conn := o.saver
	o.warden.mu.Unlock()
	if conn == nil {
		return errors.New("libxl-save-helper has not begun")
	}
	_, err := fmt.Fprintln(conn, word)
	return err
}

// wrong is the error that the word is, at a time at which none was awaited.
func (w word) wrong() error {
	switch {
	case w.err != nil:
		return fmt.Errorf("the target is gone: %w", w.err)
	case w.kind == wireError:
		return fmt.Errorf("the target: %s", w.text)
	}
	return fmt.Errorf("the target says %q", w.kind)
}

// ping asks the target whether it is there, before the guest is suspended.
func (o *outgoing) ping() error {
	if err := sendWire(o.conn, wirePing, nil); err != nil {
		return fmt.Errorf("the target is gone: %w", err)
	}
	select {
	case w := <-o.heard:
		if w.kind != wirePong {
			return w.wrong()
		}
		return nil
	case <-time.After(pingLimit):
		return fmt.Errorf("the target did not answer within %s", pingLimit)
	case <-o.cancel:
		return errCancelled
	}
}

// awaitReady waits until the target has all of the guest.
func (o *outgoing) awaitReady() error {
	last, since := int64(-1), time.Now()
	for {
		select {
		case w := <-o.heard:
			if w.kind == wireReady && w.err == nil {
				return nil
			}
			return w.wrong()
		case err := <-o.failing:
			return err
		case err := <-o.exited:
			o.exited <- err
			return o.ended(err)
		case <-o.cancel:
			return errCancelled
		case <-time.After(lookSoon):
		}
		if sent := o.seen().SentBytes; sent != last {
			last, since = sent, time.Now()
		}
		if time.Since(since) > stallLimit {
			return fmt.Errorf("nothing has come through for %s", stallLimit)
		}
	}
}

// give gives the guest to the target. xl, which would resume it here, is ended first, and nothing else here can: so the
// guest never runs twice.
func (o *outgoing) give() error {
	if err := o.endXL(); err != nil {
		return err
	}
	o.noteProgress(func(p *progress) { p.Given = true })
	o.warden.enters(left)
	if err := sendWire(o.conn, wireGive, nil); err != nil {
		return fmt.Errorf("the target is gone: %w", err)
	}
	select {
	case w := <-o.heard:
		if w.kind != wireTaken {
			return w.wrong()
		}
	case <-time.After(lastLimit):
		return fmt.Errorf("the target did not say within %s that it has the guest", lastLimit)
	}
	o.noteProgress(func(p *progress) {
		p.Done, p.Downtime, p.Elapsed = true, time.Since(p.SuspendedAt), time.Since(p.Begun)
	})
	return nil
}

// endXL kills xl with its children, and waits for its end.
func (o *outgoing) endXL() error {
	if err := syscall.Kill(-o.xl.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end xl: %w", err)
	}
	select {
	case err := <-o.exited:
		o.exited <- err
		return nil
	case <-time.After(cancelLimit):
		return errors.New("xl was killed and does not end")
	}
}

// fail ends a move that cannot go on. Unless the target was given the guest, it runs here then: xl takes back what it began.
func (o *outgoing) fail(why error) {
	fmt.Fprintln(os.Stderr, "the move is over:", why)
	close(o.cut)
	o.noteProgress(func(p *progress) { p.Failure = oneLine(why.Error()) })
	if o.seen().Given {
		return
	}
	o.conn.Close()     // so the target gives up
	_ = o.tell(mayNot) // so the helper takes back what it began
	if !o.exits(politely) {
		o.stream.Close() // so xl's next byte fails
		// xl waits for the answer of its receiver when it has sent all; the receiver's end is an answer, too.
		for _, pid := range host.Family(o.xl.Process.Pid) {
			if host.IsNamed(pid, "cat") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !o.exits(cancelLimit) {
			fmt.Fprintln(os.Stderr, "xl does not take back what it began:", o.endXL())
		}
	}
	all, err := o.warden.spec.Tools.list(o.warden.life)
	if d, is := find(all, o.warden.spec.Domain); err == nil && is && d.Reason >= 0 {
		// xl resumes a guest that it has suspended; this one it could not.
		err = o.warden.spec.Tools.run(o.warden.life, "resume", strconv.Itoa(d.Number))
	}
	if err != nil {
		o.warden.breaks(fmt.Errorf("the guest does not run on: %w", err))
		return
	}
	o.warden.enters(running)
}

// politely is how long xl may take to end by itself.
const politely = 10 * time.Second

// exits reports whether xl has ended, or does so in time.
func (o *outgoing) exits(limit time.Duration) bool {
	select {
	case err := <-o.exited:
		o.exited <- err
		return true
	case <-time.After(limit):
		return false
	}
}

// listenSaver takes what the saver says: progress, and at last the question whether the guest may be suspended.
func (o *outgoing) listenSaver() {
	conn, err := o.savers.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	o.warden.mu.Lock()
	o.saver = conn
	o.warden.mu.Unlock()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if lines.Text() == saysHold {
			o.holds <- struct{}{}
			continue
		}
		var done, total int64
		var round int
		if n, _ := fmt.Sscanf(lines.Text(), saysPass+" %d %d %d", &done, &total, &round); n == 3 {
			o.noteProgress(func(p *progress) {
				p.Rounds, p.RoundBytes, p.RoundSent = max(p.Rounds, round), total<<pageBits, done<<pageBits
			})
		}
	}
}

const pageBits = 12

// listenTarget takes what the target says.
func (o *outgoing) listenTarget() {
	buffer := make([]byte, mostContent)
	for {
		kind, content, err := readWire(o.conn, buffer)
		w := word{kind: kind, text: strings.ToValidUTF8(string(content), ""), err: err}
		select {
		case o.heard <- w:
		case <-o.over:
			return
		}
		if err != nil {
			return
		}
	}
}

// carry sends what xl says to the target, no faster than allowed. After an error it reads on, so that xl can end.
func (o *outgoing) carry() {
	buffer := make([]byte, 64<<10)
	begun, sent := time.Now(), int64(0)
	var failed error
	for {
		n, err := o.stream.Read(buffer)
		if n > 0 && failed == nil {
			if failed = sendWire(o.conn, wireStream, buffer[:n]); failed != nil {
				o.failing <- fmt.Errorf("the target is gone: %w", failed)
				continue
			}
			sent += int64(n)
			o.noteProgress(func(p *progress) { p.SentBytes = sent })
		}
		if err != nil {
			return // lead hears of xl's end
		}
		if most := o.order.BytesPerSecond; most > 0 && failed == nil && o.seen().SuspendedAt.IsZero() {
			due := begun.Add(time.Duration(float64(sent) / float64(most) * float64(time.Second)))
			select {
			case <-time.After(time.Until(due)):
			case <-o.cut:
			}
		}
	}
}
