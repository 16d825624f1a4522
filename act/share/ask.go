package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"pagurus/fleet"
)

// Constants of NFS 4.0 (RFC 7530) and its remote calls (RFC 5531), for reading one file.
// A complete client is not needed: these requests open nothing and hold no state.
const (
	programNFS, versionNFS, callCompound = 100003, 4, 1
	flavorNone, flavorUnix               = 0, 1

	opLookup, opPutRootFH, opRead = 15, 24, 25

	statusNoEntry, statusAccess, statusDelay, statusGrace = 2, 13, 10008, 10013

	// askLimit limits one query; askPause is the pause before a retry if the server is
	// not ready.
	askLimit = 5 * time.Second
	askPause = 50 * time.Millisecond
	// mostRead limits the bytes read of a file, mostReply the server's reply.
	mostRead, mostReply = 1024, 64 << 10
)

// notYet: the server cannot answer yet.
type notYet struct{ status uint32 }

func (n notYet) Error() string { return fmt.Sprintf("it is not ready (status %d)", n.status) }

// Read reads the beginning of a file in a job's directory from the job's server, as a
// guest would. It must run in a network that reaches the server.
func Read(ctx context.Context, n fleet.Network, name string) (data []byte, err error) {
	err = ask(ctx, n, name, &data)
	return data, err
}

// ask checks that the network's server serves the job's directory, and reads the
// beginning of a file in it, if one is named. It must run in the network.
func ask(ctx context.Context, n fleet.Network, name string, into *[]byte) error {
	for {
		data, err := askOnce(ctx, n, name)
		if err == nil && into != nil {
			*into = data
		}
		if not := (notYet{}); !errors.As(err, &not) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(askPause):
		}
	}
}

func askOnce(ctx context.Context, n fleet.Network, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(n.Subnet.ShareAddr(), nfsPort).String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return nil, err
		}
	}
	path := strings.Split(strings.TrimPrefix(n.Share.Export, "/"), "/")
	if name != "" {
		path = append(path, name)
	}
	if _, err := c.Write(question(*n.Share, path, name != "")); err != nil {
		return nil, err
	}
	// The reply fits into one fragment, because little is requested.
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	length := binary.BigEndian.Uint32(head[:]) &^ (1 << 31)
	if length > mostReply {
		return nil, fmt.Errorf("its answer has %d bytes", length)
	}
	reply := make([]byte, length)
	if _, err := io.ReadFull(c, reply); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	return answer(reply, path)
}

// question is a call that follows a path and reads the file.
func question(s fleet.Share, path []string, read bool) []byte {
	var b []byte
	word := func(all ...uint32) {
		for _, w := range all {
			b = binary.BigEndian.AppendUint32(b, w)
		}
	}
	text := func(t string) {
		word(uint32(len(t)))
		b = append(b, t...)
		b = append(b, make([]byte, (4-len(t)%4)%4)...)
	}
	const transaction, call, rpcVersion = 1, 0, 2
	word(0, transaction, call, rpcVersion, programNFS, versionNFS, callCompound)
	word(flavorUnix, 5*4, 0, 0, s.UID, s.GID, 0) // no host name, no further groups
	word(flavorNone, 0)
	text("")
	const minor = 0
	ops := uint32(1 + len(path))
	if read {
		ops++
	}
	word(minor, ops, opPutRootFH)
	for _, p := range path {
		word(opLookup)
		text(p)
	}
	if read {
		word(opRead, 0, 0, 0, 0, 0, 0, mostRead) // anonymous state, offset 0
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4)|1<<31) // the last and only fragment
	return b
}

// answer returns the data read, if any.
func answer(reply []byte, path []string) ([]byte, error) {
	short := false
	word := func() (w uint32) {
		if len(reply) < 4 {
			short = true
			return 0
		}
		w, reply = binary.BigEndian.Uint32(reply), reply[4:]
		return w
	}
	text := func() (t []byte) {
		n := word()
		whole := (uint64(n) + 3) &^ 3
		if whole > uint64(len(reply)) {
			short = true
			return nil
		}
		t, reply = reply[:n], reply[whole:]
		return t
	}
	word()           // transaction ID
	word()           // message type: reply
	denied := word() // denied or accepted
	word()           // the verifier's flavor
	text()
	if refused := word(); denied != 0 || refused != 0 || short {
		return nil, errors.New("it refuses to talk NFS")
	}
	word() // the status of the last operation
	text()
	var data []byte
	for at := range int(min(word(), uint32(len(path)+2))) {
		op, status := word(), word()
		switch {
		case short:
		case status == statusDelay || status == statusGrace:
			return nil, notYet{status}
		case status == statusNoEntry && op == opLookup:
			return nil, fmt.Errorf("it has no /%s", strings.Join(path[:min(at, len(path))], "/"))
		case status == statusAccess:
			return nil, fmt.Errorf("it does not let the job's user into /%s", strings.Join(path[:min(at, len(path))], "/"))
		case status != 0:
			return nil, fmt.Errorf("it says %d to operation %d", status, op)
		case op == opRead:
			word() // end of file
			data = text()
		}
	}
	if short {
		return nil, errors.New("its answer ends too early")
	}
	return data, nil
}
