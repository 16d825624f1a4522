package xen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"pagurus/act/host/passage"
)

// receive waits for a guest and takes it in. The target's own configuration is used, whatever the source's stream says
// of its devices.
func (k *warden) receive() {
	in := *k.spec.Incoming
	err := k.holds()
	var l *passage.Listener
	if err == nil {
		l, err = passage.Target{Address: in.Address, Move: in.Move, Streams: 1, Log: slog.Default()}.Listen(k.life)
	}
	if err != nil {
		k.drops()
		k.breaks(err)
		return
	}
	k.mu.Lock()
	k.status.Stage, k.status.Place = waiting, l.Place.String()
	k.mu.Unlock()
	conns, err := l.Await()
	if err != nil {
		k.drops()
		k.breaks(err)
		return
	}
	defer passage.CloseAll(conns)
	k.enters(arriving)
	t := &taking{warden: k, conn: conns[0]}
	if err := t.takeIn(); err != nil {
		t.say(wireError, []byte(err.Error()))
		k.drops()
		k.breaks(errors.Join(err, k.spec.Tools.destroy(k.spec.Domain)))
	}
}

// taking is a guest that comes.
type taking struct {
	warden *warden
	conn   net.Conn
	saying sync.Mutex
	ready  bool // all of it is here; guarded by saying
	said   tail // what xl complains of
}

// tail passes what is written to this process's log, and keeps the end of it.
type tail struct{ last []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	t.last = t.last[max(0, len(t.last)-mostSaid):]
	return os.Stderr.Write(p)
}

func (t *taking) say(kind byte, content []byte) error {
	t.saying.Lock()
	defer t.saying.Unlock()
	return sendWire(t.conn, kind, content)
}

// takeIn gives what comes to xl, until the source has given the guest away.
func (t *taking) takeIn() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	ctx, stop := context.WithCancel(t.warden.life)
	defer stop()
	c := t.warden.spec.Tools.command(ctx, "restore", "-e", "-p", configFile, "/proc/self/fd/0")
	c.Stdin, c.Stdout, c.Stderr = r, os.Stderr, &t.said
	err = c.Start()
	r.Close()
	if err != nil {
		return err
	}
	made := make(chan error, 1)
	go func() { made <- t.restored(c) }()
	buffer := make([]byte, mostContent)
	for {
		kind, content, err := readWire(t.conn, buffer)
		if err != nil {
			select {
			case failed := <-made:
				if failed != nil {
					return failed
				}
				made <- nil
			default:
			}
			stop()
			return errors.Join(fmt.Errorf("the source has ended the move: %w", err), <-made)
		}
		switch kind {
		case wireStream:
			if _, err := w.Write(content); err != nil {
				select { // xl has read all that it needs, or has failed
				case err := <-made:
					if err != nil {
						return err
					}
					made <- nil
				default:
				}
			}
		case wirePing:
			err = t.say(wirePong, nil)
		case wireGive:
			return t.given()
		default:
			err = fmt.Errorf("the source says %q", kind)
		}
		if err != nil {
			stop()
			return errors.Join(err, <-made)
		}
	}
}

// restored waits until xl has the guest, and tells the source.
func (t *taking) restored(c *exec.Cmd) error {
	err := c.Wait()
	if err != nil {
		err = fmt.Errorf("xl restore: %w: %s", err, oneLine(string(t.said.last)))
	} else {
		err = t.warden.haveConsoles()
	}
	if err != nil {
		return errors.Join(err, t.conn.SetReadDeadline(time.Unix(1, 0))) // takeIn goes on, and hears of it
	}
	t.saying.Lock()
	defer t.saying.Unlock()
	t.ready = true
	return sendWire(t.conn, wireReady, nil)
}

// given notes that the guest is this host's from now on.
func (t *taking) given() error {
	t.saying.Lock()
	ready := t.ready
	t.saying.Unlock()
	if !ready {
		return errors.New("the source gives a guest away that is not here")
	}
	t.warden.enters(whole)
	_ = t.say(wireTaken, nil) // the source may be gone; it has given the guest away all the same
	return nil
}
