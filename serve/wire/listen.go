package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

const probeLimit = time.Second

// ListenUnix opens the UNIX socket of a controller, or of a host for its owner. Every user may
// connect; permissions depend on the user. It replaces a dead process's socket, but not a live one's.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	if c, err := net.DialTimeout("unix", path, probeLimit); err == nil {
		c.Close()
		return nil, fmt.Errorf("another process already answers at %s: stop it first, or use another --run folder", path)
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

// ListenTLS opens a TCP address for callers from other machines. They show certificates
// of the authority, or a token to get one; what they show is looked at with each request.
func ListenTLS(addr string, a *identity.Authority) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return OverTLS(l, a), nil
}

// ListenFace opens a TCP address for programs that ask Face, with TLS unless plain is set. Whoever calls there shows a token, or
// a certificate over TLS.
func ListenFace(addr string, a *identity.Authority, plain bool) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	if plain {
		return newCounting(l, connectionsPerAddress), nil
	}
	return OverTLS(l, a), nil
}

// OverTLS does the same with the connections of a listener.
func OverTLS(l net.Listener, a *identity.Authority) net.Listener {
	return tls.NewListener(newCounting(l, connectionsPerAddress), &tls.Config{
		GetCertificate: (&certificates{authority: a}).get, MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"http/1.1"}, // WebSocket needs it
	})
}

// hostOf is the IP address of HOST:PORT.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return host
}

// Bracketed adds to what is wrong with a controller's address that one of IPv6 has brackets; empty: it is not one of IPv6.
func Bracketed(address string) string {
	if strings.Count(address, ":") < 2 || strings.Contains(address, "[") {
		return ""
	}
	return ", and an address of IPv6 in brackets, like [2001:db8::1]:7461"
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

func peer(c *net.UnixConn) (id Peer, err error) {
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
		id.Groups = peerGroups(fd)
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
