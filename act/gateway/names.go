package gateway

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	namesPort   = 53
	askLimit    = 5 * time.Second // each resolver
	namesIdle   = 10 * time.Second
	mostAsking  = 64
	answerBytes = 1 << 16
)

// asked are the types of records that guests may ask for.
var asked = []dnsmessage.Type{
	dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME, dnsmessage.TypeMX, dnsmessage.TypeNS, dnsmessage.TypePTR, dnsmessage.TypeSOA,
	dnsmessage.TypeSRV, dnsmessage.TypeTXT, 64, 65, // SVCB and HTTPS
}

// inner are the ends of names that mean something in the host's own network only.
var inner = []string{"local", "localhost", "localdomain", "lan", "home", "corp", "internal", "intranet", "private", "home.arpa", "test", "invalid"}

// refusedName says why guests may not ask for a name; empty: they may. The host's resolver knows the names of its owner's network.
func refusedName(name string) string {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || !strings.Contains(name, ".") {
		return "it is a name of the host's own network"
	}
	for _, end := range inner {
		if name == end || strings.HasSuffix(name, "."+end) {
			return "names below " + end + " are of the host's own network"
		}
	}
	if strings.HasSuffix(name, ".arpa") {
		if a, ok := reversed(name); !ok || !Public(a) {
			return "it is not an address of the Internet"
		}
	}
	return ""
}

// reversed is the address that a name of the reverse tree is for.
func reversed(name string) (netip.Addr, bool) {
	if rest, is := strings.CutSuffix(name, ".in-addr.arpa"); is {
		parts := strings.Split(rest, ".")
		slices.Reverse(parts)
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil && a.Is4()
	}
	rest, is := strings.CutSuffix(name, ".ip6.arpa")
	parts := strings.Split(rest, ".")
	if !is || len(parts) != 32 {
		return netip.Addr{}, false
	}
	slices.Reverse(parts)
	var b [16]byte
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 16, 4)
		if err != nil || len(p) != 1 {
			return netip.Addr{}, false
		}
		b[i/2] |= byte(v) << (4 * (1 - i%2))
	}
	return netip.AddrFrom16(b), true
}

// question reads what a guest asks. There is one question in what programs send.
func question(message []byte) (dnsmessage.Header, dnsmessage.Question, error) {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil {
		return h, dnsmessage.Question{}, err
	}
	q, err := p.Question()
	switch {
	case err != nil:
		return h, q, err
	case h.Response || h.OpCode != 0:
		return h, q, fmt.Errorf("it is no question")
	}
	_, err = p.Question()
	if err != dnsmessage.ErrSectionDone {
		return h, q, fmt.Errorf("it has several questions")
	}
	return h, q, nil
}

// answered says what is wrong with a resolver's answer for guests; nil: nothing. An address of the host's own network under a name of the
// Internet would tell guests about it, and have their programs call it.
func answered(h dnsmessage.Header, q dnsmessage.Question, message []byte) error {
	var p dnsmessage.Parser
	is, err := p.Start(message)
	if err != nil {
		return err
	}
	if is.ID != h.ID || !is.Response {
		return fmt.Errorf("it answers another question")
	}
	if again, err := p.Question(); err != nil || again.Type != q.Type || !strings.EqualFold(again.Name.String(), q.Name.String()) {
		return fmt.Errorf("it answers another question")
	}
	if err := p.SkipAllQuestions(); err != nil {
		return err
	}
	for _, records := range []func() ([]dnsmessage.Resource, error){p.AllAnswers, p.AllAuthorities, p.AllAdditionals} {
		all, err := records()
		if err != nil {
			return err
		}
		for _, r := range all {
			var a netip.Addr
			switch body := r.Body.(type) {
			case *dnsmessage.AResource:
				a = netip.AddrFrom4(body.A)
			case *dnsmessage.AAAAResource:
				a = netip.AddrFrom16(body.AAAA)
			default:
				continue
			}
			if !Public(a) {
				return fmt.Errorf("%s is not an address of the Internet", a)
			}
		}
	}
	return nil
}

// reply is an answer without records.
func reply(h dnsmessage.Header, q dnsmessage.Question, code dnsmessage.RCode) []byte {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, RCode: code},
		Questions: []dnsmessage.Question{q},
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// resolve answers a guest's question by the host's resolvers; nil: it gets no answer.
func (o *outside) resolve(network string, message []byte) []byte {
	h, q, err := question(message)
	if err != nil {
		return nil
	}
	if q.Class != dnsmessage.ClassINET || !slices.Contains(asked, q.Type) {
		return reply(h, q, dnsmessage.RCodeNotImplemented)
	}
	if refusedName(q.Name.String()) != "" {
		return reply(h, q, dnsmessage.RCodeNameError)
	}
	select {
	case o.asking <- struct{}{}:
		defer func() { <-o.asking }()
	default:
		return reply(h, q, dnsmessage.RCodeServerFailure)
	}
	for _, at := range o.resolvers() {
		out, err := ask(network, netip.AddrPortFrom(at, namesPort), message)
		if err != nil {
			continue
		}
		if answered(h, q, out) != nil {
			return reply(h, q, dnsmessage.RCodeNameError)
		}
		return out
	}
	return reply(h, q, dnsmessage.RCodeServerFailure)
}

// ask asks one resolver.
func ask(network string, at netip.AddrPort, message []byte) ([]byte, error) {
	c, err := net.DialTimeout(network, at.String(), askLimit)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(askLimit)); err != nil {
		return nil, err
	}
	if network == "tcp" {
		if err := writeMessage(c, message); err != nil {
			return nil, err
		}
		return readMessage(c)
	}
	if _, err := c.Write(message); err != nil {
		return nil, err
	}
	b := make([]byte, answerBytes)
	n, err := c.Read(b)
	return b[:n], err
}

// Over TCP a message follows its length.

func readMessage(from io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(from, b)
	return b, err
}

func writeMessage(to io.Writer, message []byte) error {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(message)))
	_, err := to.Write(append(b, message...))
	return err
}

// answerUDP answers the questions of one of a guest's ports.
func (o *outside) answerUDP(c net.Conn) {
	b := make([]byte, answerBytes)
	for {
		_ = c.SetReadDeadline(time.Now().Add(namesIdle))
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if out := o.resolve("udp", b[:n]); out != nil {
			_, _ = c.Write(out) // it asks again
		}
	}
}

// answerTCP answers the questions of one connection.
func (o *outside) answerTCP(c net.Conn) {
	for {
		_ = c.SetDeadline(time.Now().Add(namesIdle + askLimit))
		message, err := readMessage(c)
		if err != nil {
			return
		}
		out := o.resolve("tcp", message)
		if out == nil || writeMessage(c, out) != nil {
			return
		}
	}
}
