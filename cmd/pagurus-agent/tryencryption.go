// This file tries whether this machine can encrypt what goes to other hosts, and measures what
// that costs.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"pagurus/act/container/shim"
	"pagurus/act/machine"
	"pagurus/act/wireguard"
	"pagurus/fleet"
	"pagurus/internal/thread"
	"pagurus/show/view"
)

// tryEncryption has two hosts that are namespaces exchange packets through WireGuard.
func tryEncryption(ctx context.Context) []machine.Finding {
	const name = "encryption"
	if os.Geteuid() != 0 {
		return untried(name)
	}
	var cost string
	found := tried(name, "", "modprobe wireguard || modprobe tun", inFolder(func(dir string) (err error) {
		cost, err = Encryption(ctx, dir)
		return err
	}))
	found[0].Needed = false // a cluster may do without
	if found[0].OK {
		found[0].Detail = cost
	}
	return found
}

// Encryption tries whether two hosts reach each other through WireGuard, and says what does it and what
// it costs. Its files are in folder.
func Encryption(ctx context.Context, folder string) (cost string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var s testbed
	for i := range s {
		s[i] = &place{index: i, address: netip.AddrFrom4([4]byte{198, 18, 0, byte(1 + i)})}
		if s[i].host, err = namespace(); err != nil {
			return "", errors.Join(err, s.close())
		}
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.join(); err != nil {
		return "", fmt.Errorf("joining two hosts by a pair of links (veth): %w", err)
	}
	var ends [2]*wireguard.Device
	for i, p := range s {
		own := filepath.Join(folder, fmt.Sprint(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return "", err
		}
		err := thread.In(p.host, func() (err error) {
			ends[i], err = wireguard.Open(wireguard.Config{Run: own, State: own, Program: shim.Daemon()})
			return err
		})
		if err != nil {
			return "", err
		}
		defer func() {
			err = errors.Join(err, thread.In(p.host, ends[i].Remove), ends[i].Close())
		}()
	}
	for i, p := range s {
		other := 1 - i
		w := fleet.WireGuard{Address: innerAddr(i), MTU: fleet.WireGuardMTU, Peers: []fleet.WireGuardPeer{{
			Host: "other", Key: ends[other].End().Key, Address: innerAddr(other),
			Endpoint: netip.AddrPortFrom(s[other].address, ends[other].End().Port).String()}}}
		if err := thread.In(p.host, func() error { return ends[i].Apply(ctx, w) }); err != nil {
			return "", err
		}
	}
	return s.pour(ctx, ends)
}

func innerAddr(i int) netip.Addr { return fleet.WireGuardAddr(uint32(1 + i)) }

// pourFor is how long bytes are sent to see what that costs.
const pourFor = 400 * time.Millisecond

// pour sends from one host to the other as much as goes, and says what it cost.
func (s testbed) pour(ctx context.Context, ends [2]*wireguard.Device) (string, error) {
	var l net.Listener
	err := thread.In(s[0].host, func() (err error) {
		l, err = net.Listen("tcp6", netip.AddrPortFrom(innerAddr(0).WithZone(ends[0].Name()), 0).String())
		return err
	})
	if err != nil {
		return "", err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	at := netip.AddrPortFrom(innerAddr(0).WithZone(ends[1].Name()), uint16(l.Addr().(*net.TCPAddr).Port))
	sent := make(chan error, 1)
	go func() {
		sent <- thread.In(s[1].host, func() error {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp6", at.String())
			if err != nil {
				return fmt.Errorf("two hosts do not reach each other through WireGuard: %w", err)
			}
			piece := make([]byte, 1<<20)
			for end := time.Now().Add(pourFor); err == nil && time.Now().Before(end); {
				_, err = c.Write(piece)
			}
			return errors.Join(err, c.Close())
		})
	}()
	c, err := l.Accept()
	if err != nil {
		return "", errors.Join(<-sent, ctx.Err())
	}
	defer c.Close()
	began, before := time.Now(), ends[0].CPU()+ends[1].CPU()
	n, err := io.Copy(io.Discard, c)
	took, used := time.Since(began), ends[0].CPU()+ends[1].CPU()-before
	if err = errors.Join(err, <-sent); err != nil {
		return "", err
	}
	by := ends[0].Protection()
	if by == fleet.KernelWireGuard {
		return fmt.Sprintf("by the kernel's WireGuard, %s/s between two hosts on this machine", view.Bytes(int64(float64(n)/took.Seconds()))), nil
	}
	each := time.Duration(float64(used) / 2 * (1 << 30) / float64(n))
	return fmt.Sprintf("by %s, since this kernel has no WireGuard: %s/s between two hosts on this machine, and each host's process uses %.1f s of a CPU for 1 GiB", by,
		view.Bytes(int64(float64(n)/took.Seconds())), each.Seconds()), nil
}
