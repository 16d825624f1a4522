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

// Where things are inside. The agent is the host's to show there, all else is in the
// container's own memory.
const (
	AgentPath = folder + "/pagurus-guest"
	Link      = folder + "/link.sock"
	Console   = folder + "/console"

	folder = "/run/pagurus"
)

// AgentShown reports whether a container, by one of its processes here, has its guest agent
// where the host shows it. Its root cannot take that away, but can move the folder.
func AgentShown(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == AgentPath {
			return true
		}
	}
	return err != nil // who has ended has moved nothing
}

// Elsewhere says what is so if it is not, and what to do.
const Elsewhere = folder + " was moved or removed, in which the host shows the guest its agent: move it back"

// open opens a file of a container's memory by its path inside.
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
		return nil, errors.Join(err, fmt.Errorf("%s is no socket", Link))
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
}

// AgentLinked reports whether the guest agent, a process here, has a connection of its
// socket open, or is about to. The kernel counts such a connection among the
// sockets of the network namespace of whoever made it: this process's. Of one
// that nobody has taken yet (inode 0) it does not say which guest's it is.
func AgentLinked(agent int) (bool, error) {
	text, err := os.ReadFile("/proc/thread-self/net/unix") // the first thread may be anywhere
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

// LastWords is the end of what is on a container's console, for people; empty if
// there is nothing.
func LastWords(store string) string {
	f, err := open(store, Console, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return ""
	}
	defer f.Close()
	return host.Tail(f)
}
