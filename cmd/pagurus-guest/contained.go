package main

import (
	"context"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/guestlink"
)

// contained says that this guest is a container. What its driver has made is
// not made here: names, mounts, the network, the job's files. The clock and the
// random numbers are the host's, and there is no right to touch them.
var contained = os.Getenv("container") == "pagurus"

// socketPath is where a container's link to the host is.
const socketPath = runDir + "/link.sock"

// prepareContainer makes what is missing in a container before programs can run.
func prepareContainer() error {
	if err := os.MkdirAll(lockDir, 0o755); err != nil {
		return err
	}
	return nameSelf()
}

// serveSocket answers the host for ever, or ends the container. There is one
// connection at a time: the host makes a new one when it has given the old one
// up. Before a container is moved the host ends it: what leads outside cannot
// go along.
func serveSocket(m *member) {
	listener, err := net.Listen("unix", socketPath)
	if err == nil {
		err = os.Chmod(socketPath, 0o600) // no program of the job is the host
	}
	if err != nil {
		say("cannot listen for the host: %v", err)
		os.Exit(1)
	}
	for last := net.Conn(nil); ; {
		conn, err := listener.Accept()
		if err != nil {
			time.Sleep(time.Second) // out of file descriptors, perhaps; that passes
			continue
		}
		if last != nil {
			last.Close()
		}
		last = conn
		go func() {
			defer conn.Close()
			_ = guestlink.Serve(context.Background(), conn, m) // it ends with the connection, as it should
		}()
	}
}

// flushShare writes what programs have written to the job's files, which stay
// mounted.
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
