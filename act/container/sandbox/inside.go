package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

// Paths in the container. The host mounts the agent; the others are in the container's own
// memory.
const (
	AgentPath = folder + "/pagurus-guest"
	Link      = folder + "/link.sock"
	Console   = folder + "/console"

	folder = "/run/pagurus"
)

// AgentShown reports whether a container, given one of its processes, has its guest agent at
// AgentPath. The container's root cannot unmount the agent, but can move the folder.
func AgentShown(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == AgentPath {
			return true
		}
	}
	return err != nil // a process that has ended has moved nothing
}

// Elsewhere says, for people, that AgentShown is false and what to do.
const Elsewhere = folder + " was moved or removed, in which the host shows the guest its agent: move it back"

// open opens a file in a container's memory by its path in the container.
func open(store, path string, flags uint64) (*os.File, error) {
	top, err := unix.Open(store, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: store, Err: err}
	}
	defer unix.Close(top)
	fd, err := unix.Openat2(top, strings.TrimPrefix(path, "/"), &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// DialAgent connects to the guest agent.
func DialAgent(ctx context.Context, store string) (net.Conn, error) {
	socket, err := open(store, Link, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	if info, err := socket.Stat(); err != nil || info.Mode().Type() != os.ModeSocket {
		return nil, errors.Join(err, fmt.Errorf("%s is not a socket", Link))
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
}

// AgentLinked reports whether the guest agent, given its PID on this host, has a connection
// through its socket open, or is about to. The kernel lists such a connection in the network
// namespace of the process that made it: this process's. For a connection that was not accepted
// yet (inode 0) it does not say which guest's it is.
func AgentLinked(agent int) (bool, error) {
	text, err := os.ReadFile("/proc/thread-self/net/unix") // the first thread may be in another namespace
	if err != nil {
		return false, err
	}
	made := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 7 && f[7] == Link {
			made["socket:["+f[6]+"]"] = true
		}
	}
	if made["socket:[0]"] {
		return true, nil
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", agent))
	if err != nil {
		return false, err
	}
	for _, f := range files {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", agent, f.Name())); err == nil && made[to] {
			return true, nil
		}
	}
	return false, nil
}

// LastWords returns the end of a container's console, for people, or "".
func LastWords(store string) string {
	f := OpenConsole(store)
	if f == nil {
		return ""
	}
	defer f.Close()
	return host.Tail(f)
}

// OpenConsole opens a container's console for reading, or returns nil.
func OpenConsole(store string) *os.File {
	f, err := open(store, Console, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil
	}
	return f
}
