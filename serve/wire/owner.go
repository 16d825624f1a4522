package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"pagurus/fleet"
)

// DefaultOwnerSocket is where the agent of a machine listens for the machine's owner.
const DefaultOwnerSocket = "/run/pagurus/owner.sock"

const (
	ownerLimit = 10 * time.Second
	ownerBytes = 1 << 20
	ownerAgain = time.Second // after a call that could not be taken
)

// ServeOwner answers the people of this machine until ctx ends, one question a connection. answer is told who asks, as the kernel knows them.
func ServeOwner(ctx context.Context, l net.Listener, answer func(uid uint32, a fleet.OwnerAsk) fleet.OwnerAnswer) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("listening for the owner: %w", err)
		}
		if err != nil { // out of file descriptors, for example, which passes
			select {
			case <-ctx.Done():
			case <-time.After(ownerAgain):
			}
			continue
		}
		go func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(ownerLimit))
			_ = json.NewEncoder(c).Encode(askedBy(c, answer)) // who does not read it has gone
		}()
	}
}

// askedBy reads a question, and answers it.
func askedBy(c net.Conn, answer func(uid uint32, a fleet.OwnerAsk) fleet.OwnerAnswer) (out fleet.OwnerAnswer) {
	defer func() { // a bug in an answer must not end the agent of all guests
		if p := recover(); p != nil {
			out = fleet.OwnerAnswer{Refused: fmt.Sprintf("the agent has a bug: %v", p)}
		}
	}()
	of, is := c.(*counted)
	if !is || of.id == nil || of.over {
		return fleet.OwnerAnswer{Refused: "it is not known who asks, or they ask too much at once"}
	}
	var a fleet.OwnerAsk
	if err := json.NewDecoder(io.LimitReader(c, ownerBytes)).Decode(&a); err != nil {
		return fleet.OwnerAnswer{Refused: fmt.Sprintf("the question cannot be read: %s", err)}
	}
	return answer(of.id.Caller.UID, a)
}

// AskAgent asks the agent of this machine as its owner.
func AskAgent(ctx context.Context, socket string, a fleet.OwnerAsk) (out fleet.OwnerAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, ownerLimit)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return out, fmt.Errorf("no agent of this machine answers at %s: is it a host, and is the agent started? %w", socket, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := json.NewEncoder(c).Encode(a); err != nil {
		return out, fmt.Errorf("asking the agent: %w", err)
	}
	if err := json.NewDecoder(io.LimitReader(c, ownerBytes)).Decode(&out); err != nil {
		return out, fmt.Errorf("asking the agent: %w", err)
	}
	if out.Refused != "" {
		return out, errors.New(out.Refused)
	}
	return out, nil
}
