package wireguard

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// What passes to a peer in a moment is measured by a stream of TCP: at most so many bytes, for at most so long. The peer says how many
// came, and within what time, from the first to the last.
const (
	burstBytes = 4 << 20
	burstLimit = time.Second
	burstDial  = 3 * time.Second
	sinkPort   = 37462 // TCP, inside, among the ports that a moving guest may come to
)

// Sink takes in such streams from peers, one at a time, until it is closed. Only peers reach it.
type Sink struct{ net.Listener }

// OpenSink listens inside the device. It has to be opened again when the device is made again.
func (d *Device) OpenSink(own netip.Addr) (*Sink, error) {
	link, err := net.InterfaceByName(d.name)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp6", netip.AddrPortFrom(own.WithZone(strconv.Itoa(link.Index)), sinkPort).String())
	if err != nil {
		return nil, err
	}
	return &Sink{l}, nil
}

// Serve returns when the sink is closed.
func (s *Sink) Serve() {
	for {
		c, err := s.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(burstLimit) // no descriptor is left, for a while
			continue
		}
		_ = c.SetDeadline(time.Now().Add(2 * burstLimit))
		_ = takeIn(c) // the peer measures again some time
		_ = c.Close()
	}
}

// takeIn reads a stream, and says how much came and how long that took.
func takeIn(c net.Conn) error {
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	if err != nil {
		return err
	}
	first, total := time.Now(), int64(0) // what came at once took unknown time
	for err == nil && total+int64(n) < 2*burstBytes {
		var m int
		m, err = c.Read(b)
		total += int64(m)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	said := binary.BigEndian.AppendUint64(nil, uint64(total))
	_, err = c.Write(binary.BigEndian.AppendUint64(said, uint64(time.Since(first))))
	return err
}

// Burst measures what passes to a peer, in bytes a second.
func (d *Device) Burst(ctx context.Context, peer netip.Addr) (float64, error) {
	link, err := net.InterfaceByName(d.name)
	if err != nil {
		return 0, err
	}
	dialer := net.Dialer{Timeout: burstDial}
	c, err := dialer.DialContext(ctx, "tcp6", netip.AddrPortFrom(peer.WithZone(strconv.Itoa(link.Index)), sinkPort).String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	end := time.Now().Add(burstLimit)
	b := make([]byte, 64<<10)
	_ = c.SetDeadline(end.Add(3 * burstLimit))
	for sent := 0; sent < burstBytes && time.Now().Before(end); sent += len(b) {
		if _, err := c.Write(b); err != nil {
			return 0, err
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	var said [16]byte
	if _, err := io.ReadFull(c, said[:]); err != nil {
		return 0, err
	}
	total, took := binary.BigEndian.Uint64(said[:8]), time.Duration(binary.BigEndian.Uint64(said[8:]))
	if took <= 0 || total == 0 || total > 2*burstBytes {
		return 0, errors.New("the peer says what cannot be")
	}
	return float64(total) / took.Seconds(), nil
}
