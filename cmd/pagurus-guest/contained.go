package main

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/guestlink"
	"pagurus/fleet"
)

// contained: this guest is a container. Its driver has already made names, mounts, network
// and the job's files. Clock and random numbers are the host's, and the container has no
// right to change them.
var contained = os.Getenv("container") == "pagurus"

// socketPath is a container's link to the host.
const socketPath = runDir + "/link.sock"

// prepareContainer makes what a container still lacks before programs can run.
func prepareContainer() error {
	if err := os.MkdirAll(lockDir, 0o755); err != nil {
		return err
	}
	return nameSelf()
}

// serveSocket serves the host until it fails, and then ends the container. There is one connection at a
// time: a new one replaces the old. Before a move the host closes it, since a connection to
// the outside cannot move.
func serveSocket(m *member) {
	listener, err := net.Listen("unix", socketPath)
	if err == nil {
		err = os.Chmod(socketPath, 0o600) // only the host may connect, not the job's programs
	}
	if err != nil {
		say("cannot listen for the host: %v", err)
		os.Exit(1)
	}
	for last := net.Conn(nil); ; {
		conn, err := listener.Accept()
		if err != nil {
			time.Sleep(time.Second) // perhaps out of file descriptors, which passes
			continue
		}
		if last != nil {
			last.Close()
		}
		last = conn
		go func() {
			defer conn.Close()
			_ = guestlink.Serve(context.Background(), conn, m) // it ends with the connection
		}()
	}
}

// flushShares writes programs' data to all of the job's directories.
func flushShares(all []fleet.Directory) error {
	var errs []error
	for _, d := range all {
		if !d.ReadOnly {
			errs = append(errs, flushShare(d.Path))
		}
	}
	return errors.Join(errs...)
}

// flushShare writes programs' data to the job's files, which stay mounted.
func flushShare(export string) error {
	if export == "" {
		return nil
	}
	dir, err := os.Open(export)
	if err != nil {
		return err
	}
	defer dir.Close()
	return os.NewSyscallError("writing the job's files", unix.Syncfs(int(dir.Fd())))
}
