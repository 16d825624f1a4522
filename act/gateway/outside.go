package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// What one job may have open. A home's router often has room for some thousand connections, which are the owner's, too.
const (
	mostTCP      = 1024
	eachTCP      = 512 // of one guest
	mostUDP      = 512
	eachUDP      = 256
	mostHalfOpen = 128
	newPerSecond = 50 // connections and flows, in the long run
	newAtOnce    = 400
)

const (
	callLimit = 20 * time.Second
	udpIdle   = time.Minute // a flow that was silent so long is over
	// silence is after how long of it a guest is asked whether it is still there. A guest that is suspended for longer while it
	// moves or its host's owner is present has lost its connections.
	silence     = 10 * time.Minute
	silentAsks  = 30 * time.Second
	halfClosed  = 10 * time.Minute // with no byte in the other direction
	copyBytes   = 32 << 10
	bufferUsual = 64 << 10
	bufferMost  = 256 << 10 // of each direction of a connection
)

// nic is the number of the stack's only link.
const nic = 1

// outside has a job's connections to the outside.
type outside struct {
	own       netip.Addr // the gateway's
	tcp, udp  *room
	fresh     *rate.Limiter // new connections
	bytes     *rate.Limiter
	resolvers func() []netip.Addr
	asking    chan struct{} // has room for the questions to resolvers
	allowed   func(netip.AddrPort) error
}

// newStack makes the network stack that ends guests' connections.
func (o *outside) newStack(link *channel.Endpoint) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	sack := tcpip.TCPSACKEnabled(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: bufferUsual, Max: bufferMost}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: bufferUsual, Max: bufferMost}
	for _, err := range []tcpip.Error{
		s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack), s.SetTransportProtocolOption(tcp.ProtocolNumber, &receive),
		s.SetTransportProtocolOption(tcp.ProtocolNumber, &send),
		s.CreateNIC(nic, link),
		s.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddrFromSlice(o.own.AsSlice()).WithPrefix()}, stack.AddressProperties{}),
		s.SetPromiscuousMode(nic, true), // takes packets for every address
		s.SetSpoofing(nic, true),        // and answers from there
	} {
		if err != nil {
			return nil, fmt.Errorf("making the gateway's network: %s", err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, bufferUsual, mostHalfOpen, o.connect).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(s, o.flow).HandlePacket)
	return s, nil
}

// ends are a guest and whom it calls.
func ends(id stack.TransportEndpointID) (guest netip.Addr, to netip.AddrPort) {
	return netip.AddrFrom4(id.RemoteAddress.As4()), netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
}

// room takes a place for a new connection of a guest.
func (o *outside) room(in *room, guest netip.Addr) (func(), bool) {
	if !o.fresh.Allow() {
		return nil, false
	}
	return in.takePlace(guest)
}

// connect connects a guest by TCP. It learns of the other side's refusal as if nothing was between, because it gets no answer before.
func (o *outside) connect(r *tcp.ForwarderRequest) {
	guest, to := ends(r.ID())
	giveBack, free := o.room(o.tcp, guest)
	if !free {
		r.Complete(true)
		return
	}
	defer giveBack()
	var far net.Conn
	if to != netip.AddrPortFrom(o.own, namesPort) {
		var err error
		if far, err = o.call("tcp4", to); err != nil {
			r.Complete(!timedOut(err)) // who waited in vain waits on
			return
		}
		defer far.Close()
	}
	var queue waiter.Queue
	end, failed := r.CreateEndpoint(&queue)
	if failed != nil {
		r.Complete(true)
		return
	}
	r.Complete(false)
	end.SocketOptions().SetKeepAlive(true)
	idle, pause := tcpip.KeepaliveIdleOption(silence), tcpip.KeepaliveIntervalOption(silentAsks)
	_, _ = end.SetSockOpt(&idle), end.SetSockOpt(&pause) // without them it takes longer
	near := gonet.NewTCPConn(&queue, end)
	defer near.Close()
	if far == nil {
		o.answerTCP(near)
		return
	}
	o.join(nearEnd{near, end}, farEnd{far.(*net.TCPConn)}) // of TCP
}

// call calls an address for a guest, if guests may reach it.
func (o *outside) call(network string, to netip.AddrPort) (net.Conn, error) {
	if err := o.allowed(to); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: callLimit}
	return d.Dial(network, to.String())
}

// joined is an end of a connection that is passed on.
type joined interface {
	net.Conn
	CloseWrite() error
	// reset ends it so that the other side does not take what it has for all.
	reset()
}

// nearEnd is the guest's.
type nearEnd struct {
	*gonet.TCPConn
	end tcpip.Endpoint
}

func (n nearEnd) reset() {
	n.end.Abort()
	_ = n.Close()
}

// farEnd is the one outside.
type farEnd struct{ *net.TCPConn }

func (f farEnd) reset() {
	_ = f.SetLinger(0)
	_ = f.Close()
}

// join passes bytes in both directions until both have ended.
func (o *outside) join(near, far joined) {
	var both sync.WaitGroup
	var half atomic.Bool // one direction has ended
	both.Go(func() { o.pass(far, near, &half) })
	both.Go(func() { o.pass(near, far, &half) })
	both.Wait()
}

// pass passes bytes from one connection to another. When the first ends, the other's direction ends. An error ends both.
func (o *outside) pass(to, from joined, half *atomic.Bool) {
	b := make([]byte, copyBytes)
	for {
		if half.Load() {
			_ = from.SetReadDeadline(time.Now().Add(halfClosed))
		}
		n, err := from.Read(b)
		if n > 0 {
			_ = o.bytes.WaitN(context.Background(), n) // a burst holds more than a buffer
			if _, wrong := to.Write(b[:n]); wrong != nil {
				err = wrong
			}
		}
		if errors.Is(err, io.EOF) && to.CloseWrite() == nil {
			half.Store(true)
			_ = to.SetReadDeadline(time.Now().Add(halfClosed))
			return
		}
		if err != nil {
			to.reset()
			from.reset()
			return
		}
	}
}

func timedOut(err error) bool {
	var is net.Error
	return errors.As(err, &is) && is.Timeout()
}

// flow passes a guest's datagrams to one address, and the answers.
func (o *outside) flow(r *udp.ForwarderRequest) {
	guest, to := ends(r.ID())
	giveBack, free := o.room(o.udp, guest)
	if !free {
		return
	}
	var far net.Conn
	if to != netip.AddrPortFrom(o.own, namesPort) {
		var err error
		if far, err = o.call("udp4", to); err != nil {
			giveBack()
			return
		}
	}
	var queue waiter.Queue
	end, failed := r.CreateEndpoint(&queue)
	if failed != nil {
		giveBack()
		if far != nil {
			_ = far.Close()
		}
		return
	}
	near := gonet.NewUDPConn(&queue, end)
	go func() {
		defer giveBack()
		defer near.Close()
		if far == nil {
			o.answerUDP(near)
			return
		}
		defer far.Close()
		o.exchange(near, far)
	}()
}

// exchange passes datagrams in both directions until none has come for a while.
func (o *outside) exchange(near, far net.Conn) {
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	one := func(to, from net.Conn) {
		b := make([]byte, frameBytes)
		for {
			end := time.Unix(0, last.Load()).Add(udpIdle)
			_ = from.SetReadDeadline(end)
			n, err := from.Read(b)
			switch {
			case timedOut(err) && time.Now().Before(time.Unix(0, last.Load()).Add(udpIdle)):
				continue
			case timedOut(err), errors.Is(err, net.ErrClosed), errors.Is(err, io.EOF):
				_, _ = to.Close(), from.Close()
				return
			case err != nil: // of a datagram that nobody took
				if !time.Now().Before(end) {
					_, _ = to.Close(), from.Close()
					return
				}
				time.Sleep(time.Millisecond)
				continue
			}
			last.Store(time.Now().UnixNano())
			if o.bytes.AllowN(time.Now(), n) { // what is too much is lost
				_, _ = to.Write(b[:n])
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { one(far, near) })
	both.Go(func() { one(near, far) })
	both.Wait()
}
