package passage

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"pagurus/fleet"
	"pagurus/internal/pause"
)

// Place is where a target waits for a guest's memory.
type Place struct {
	Address netip.AddrPort
	Secret  string // of one move
}

// String is the place as orders carry it. It has the secret in it.
func (p Place) String() string { return p.Address.String() + "/" + p.Secret }

// leastSecret is the length of a secret that cannot be guessed: that of rand.Text.
const leastSecret = 26

// ParsePlace reads the text of String.
func ParsePlace(text string) (Place, error) {
	address, secret, _ := strings.Cut(text, "/")
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return Place{}, fmt.Errorf("the target's address: %w", err)
	}
	if len(secret) < leastSecret {
		return Place{}, errors.New("the target's address comes without the secret of the move: upgrade the agent of that host")
	}
	return Place{at, secret}, nil
}

// Move is what both ends must mean.
type Move struct {
	Guest     fleet.GuestID
	Gen       uint64
	Migration fleet.MigrationID
	From      fleet.HostID // the host that the controller named as the source
}

// The two ends of a connection, as they say it.
const (
	sourceEnd = "source"
	targetEnd = "target"
)

const (
	hello      = "pagurus move 1\n"
	nonceBytes = 32
	// greetLimit is the time for all of a greeting.
	greetLimit = 10 * time.Second
	// takenWord ends a greeting: the target will read what comes.
	takenWord = '+'
)

// ErrStranger is the error about who does not know the secret, or means another move.
var ErrStranger = errors.New("the other side does not know the secret of this move")

// proof is what only an end that knows the secret can say, in this greeting. It names the move and which of its connections it is.
func (p Place) proof(end string, m Move, stream int, nonces []byte) []byte {
	mac := hmac.New(sha256.New, []byte(p.Secret))
	fmt.Fprintf(mac, "%s%s %q %d %q %q %d %x", hello, end, m.Guest, m.Gen, m.Migration, m.From, stream, nonces)
	return mac.Sum(nil)
}

// Dial makes a move's connections, in their order. After an error there is none. The target can
// read from them when something was sent.
func (p Place) Dial(ctx context.Context, m Move, streams int) (all []*net.TCPConn, err error) {
	defer func() {
		if err != nil {
			CloseAll(all)
			all = nil
		}
	}()
	for i := range streams {
		conn, err := p.reach(ctx)
		if err != nil {
			return all, fmt.Errorf("reach the target: %w", err)
		}
		all = append(all, conn)
		if err = tie(conn); err == nil {
			err = p.present(ctx, conn, m, i)
		}
		if err != nil {
			return all, fmt.Errorf("reach the target at %s: %w", p.Address, err)
		}
	}
	return all, nil
}

// A target's agent that is starting again does not listen for a moment.
const (
	restartPatience = 10 * time.Second
	reachAgain      = 100 * time.Millisecond
)

// reach connects to the target's agent.
func (p Place) reach(ctx context.Context) (*net.TCPConn, error) {
	for begun := time.Now(); ; {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", p.Address.String())
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begun) > restartPatience || pause.For(ctx, reachAgain) != nil {
			return nil, err
		}
	}
}

// CloseAll closes connections.
func CloseAll(all []*net.TCPConn) {
	for _, c := range all {
		_ = c.Close()
	}
}

// present is the source's part of a greeting. It first lets the target prove that it is the target: memory is sent to no other.
func (p Place) present(ctx context.Context, conn net.Conn, m Move, stream int) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(greetLimit)); err != nil {
		return err
	}
	nonces := make([]byte, nonceBytes, 2*nonceBytes)
	_, _ = rand.Read(nonces) // it never fails
	if _, err := conn.Write(append([]byte(hello), append(nonces, byte(stream))...)); err != nil {
		return err
	}
	answer := make([]byte, nonceBytes+sha256.Size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("%w: %w", ErrStranger, err)
	}
	nonces = append(nonces, answer[:nonceBytes]...)
	if !hmac.Equal(answer[nonceBytes:], p.proof(targetEnd, m, stream, nonces)) {
		return ErrStranger
	}
	if _, err := conn.Write(p.proof(sourceEnd, m, stream, nonces)); err != nil {
		return err
	}
	var word [1]byte
	if _, err := io.ReadFull(conn, word[:]); err != nil || word[0] != takenWord {
		return fmt.Errorf("it takes no memory for this move: %w", errors.Join(err, ctx.Err()))
	}
	return conn.SetDeadline(time.Time{})
}

// meet is the target's part of a greeting, but for its last word. It returns which of the move's connections this is.
func (p Place) meet(conn net.Conn, m Move) (stream int, err error) {
	if err := conn.SetDeadline(time.Now().Add(greetLimit)); err != nil {
		return 0, err
	}
	text := make([]byte, len(hello)+nonceBytes+1)
	if _, err := io.ReadFull(conn, text); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	if string(text[:len(hello)]) != hello {
		return 0, ErrStranger
	}
	stream = int(text[len(text)-1])
	nonces := append([]byte{}, text[len(hello):len(text)-1]...)
	own := make([]byte, nonceBytes)
	_, _ = rand.Read(own)
	nonces = append(nonces, own...)
	if _, err := conn.Write(append(own, p.proof(targetEnd, m, stream, nonces)...)); err != nil {
		return 0, err
	}
	came := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, came); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	if !hmac.Equal(came, p.proof(sourceEnd, m, stream, nonces)) {
		return 0, ErrStranger
	}
	return stream, conn.SetDeadline(time.Time{})
}

// sayTaken says the greeting's last word.
func sayTaken(conn net.Conn) error {
	if err := conn.SetWriteDeadline(time.Now().Add(greetLimit)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{takenWord}); err != nil {
		return err
	}
	return conn.SetWriteDeadline(time.Time{})
}
