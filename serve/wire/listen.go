package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// serverName is in every controller's certificate. It is not checked; the fingerprint is.
const serverName = "pagurus-controller"

const probeLimit = time.Second

// ListenUnix opens the controller's UNIX socket. Every user may connect; permissions depend
// on the user. It replaces a dead controller's socket, but not a live one's.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	if c, err := net.DialTimeout("unix", path, probeLimit); err == nil {
		c.Close()
		return nil, fmt.Errorf("a controller already runs at %s: stop it first, or use another --run folder", path)
	} else if errors.Is(err, unix.ECONNREFUSED) {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listening on %s: %w", path, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return newCounting(l, connectionsPerUser), nil
}

// ListenTLS opens a TCP address for clients on other machines.
func ListenTLS(addr string, id Identity) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return tls.NewListener(newCounting(l, connectionsPerAddress), &tls.Config{
		Certificates: []tls.Certificate{id.Certificate}, MinVersion: tls.VersionTLS13,
		NextProtos: []string{"http/1.1"}, // WebSocket needs it
	}), nil
}

// identity is the user at the other end of a connection.
type identity struct {
	fleet.Caller
	groups []uint32
}

type connectionKey struct{}

// known puts the connection into its context, with the user on the UNIX socket as the kernel
// reports it. Over TCP the user is unknown without the token.
func known(ctx context.Context, c net.Conn) context.Context {
	if t, is := c.(*tls.Conn); is {
		c = t.NetConn()
	}
	of, is := c.(*counted)
	if !is {
		return ctx
	}
	return context.WithValue(ctx, connectionKey{}, of)
}

func peer(c *net.UnixConn) (id identity, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return id, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		id.Caller = fleet.Caller{UID: cred.Uid, GID: cred.Gid, Admin: cred.Uid == 0}
		id.groups = peerGroups(fd)
	})
	return id, errors.Join(err, cerr)
}

// peerGroups asks the kernel for the peer's supplementary groups at the time it connected.
// It returns none if the kernel cannot tell.
func peerGroups(fd uintptr) []uint32 {
	groups := make([]uint32, 64)
	for range 2 {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:size/4]
		case unix.ERANGE: // size is the needed size
			groups = make([]uint32, size/4)
		default:
			return nil
		}
	}
	return nil
}

// caller gives the request's user, by the socket or by the token.
func (s *server) caller(r *http.Request) (identity, error) {
	if c, ok := r.Context().Value(connectionKey{}).(*counted); ok {
		if c.over {
			return identity{}, &Error{http.StatusTooManyRequests, "you hold too many connections to the controller at once: end some of your programs that use it"}
		}
		if c.id != nil {
			return *c.id, nil
		}
	}
	secret, _, _ := strings.Cut(s.token, ".")
	shown, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ".")
	if r.TLS == nil || secret == "" || !sameSecret(secret, shown) {
		return identity{}, &Error{http.StatusUnauthorized, "the controller does not know this token: set PAGURUS_TOKEN_FILE to a copy of the token file in the controller's state folder"}
	}
	return identity{Caller: fleet.Caller{Admin: true}}, nil
}
