package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// account is the guest's entry for the user of the job's programs.
type account struct {
	user
	name, dir, shell string
}

// workable gives a directory in which commands can start: the home, if it exists.
func (a account) workable() string {
	if exists(a.dir) {
		return a.dir
	}
	return "/"
}

func firstOfAll() bool { return os.Getpid() == 1 }

// writeNames sets the guest's name and writes its peers' names.
func (m *member) writeNames(s fleet.Setup) error {
	if firstOfAll() && !contained {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return err
		}
	}
	var hosts, ompi, mpich, peers strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
	for _, p := range s.Peers {
		fmt.Fprintf(&hosts, "%s %s\n", p.Addr, p.Hostname)
		fmt.Fprintf(&peers, "%s %s\n", p.Hostname, p.Addr)
		if p.Slots > 0 {
			fmt.Fprintf(&ompi, "%s slots=%d\n", p.Hostname, p.Slots)
			fmt.Fprintf(&mpich, "%s:%d\n", p.Hostname, p.Slots)
		}
	}
	files := []struct{ path, text string }{
		{"/etc/hostname", s.Hostname + "\n"}, {"/etc/hosts", hosts.String()},
		{hostsOMPI, ompi.String()}, {hostsPICH, mpich.String()}, {peersPath, peers.String()},
	}
	if s.Gateway.IsValid() {
		files = append(files, struct{ path, text string }{"/etc/resolv.conf", fmt.Sprintf("nameserver %s\noptions timeout:3\n", s.Gateway)})
	}
	for _, f := range files {
		if err := m.write(f.path, f.text); err != nil {
			return err
		}
	}
	return nil
}

// write replaces a whole file.
func (m *member) write(path, text string) error {
	path = filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return note.Write(path, []byte(text), 0o644)
}

// ofJob reports whether a path is in one of the job's directories, or below a link that leads to one.
func ofJob(s fleet.Setup, path string) bool {
	return slices.ContainsFunc(s.Links, func(l fleet.Link) bool { return within(path, l.Path) }) || slices.ContainsFunc(directories(s), func(d fleet.Directory) bool { return within(path, d.Path) })
}

// enlist adds the job's user to the guest, so that programs can look it up, and gives it a
// home. An image's own entry is kept.
func (m *member) enlist(s fleet.Setup) (account, error) {
	a := account{user: user{UID: s.UID, GID: s.GID, Groups: s.Groups}, name: "user", dir: "/home/user", shell: "/bin/sh"}
	if s.UID == 0 {
		a.name, a.dir = "root", "/root"
	}
	if ofJob(s, a.dir) {
		a.dir = "/var/home/user" // the share covers it and is not ours to write
	}
	if f, err := m.entry("/etc/passwd", 2, s.UID); err != nil {
		return a, err
	} else if f != nil {
		a.name = f[0]
		if len(f) > 5 && strings.HasPrefix(f[5], "/") && !ofJob(s, f[5]) {
			a.dir = f[5]
		}
	} else if err := m.add("/etc/passwd", fmt.Sprintf("%s:x:%d:%d:Pagurus:%s:%s", a.name, s.UID, s.GID, a.dir, a.shell)); err != nil {
		return a, err
	}
	for i, gid := range append([]uint32{s.GID}, s.Groups...) {
		f, err := m.entry("/etc/group", 2, gid)
		if err != nil {
			return a, err
		}
		if f != nil {
			continue
		}
		name := "user"
		if i > 0 || s.UID == 0 {
			name = fmt.Sprintf("g%d", gid)
		}
		if err := m.add("/etc/group", fmt.Sprintf("%s:x:%d:", name, gid)); err != nil {
			return a, err
		}
	}
	home := filepath.Join(m.root, a.dir)
	if _, err := os.Stat(home); err == nil && a.dir != "/home/user" && a.dir != "/var/home/user" {
		return a, nil // an image's own directory keeps its owner
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return a, err
	}
	return a, os.Chown(home, int(s.UID), int(s.GID))
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	r, err := filepath.Rel(dir, path)
	return err == nil && r != ".." && !strings.HasPrefix(r, "../")
}

// entry finds the line of a file like /etc/passwd whose numbered field is id.
func (m *member) entry(path string, field int, id uint32) ([]string, error) {
	f, err := os.Open(filepath.Join(m.root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) > field && fields[field] == strconv.FormatUint(uint64(id), 10) {
			return fields, nil
		}
	}
	return nil, lines.Err()
}

// add appends a line to a file.
func (m *member) add(path, line string) error {
	old, err := os.ReadFile(filepath.Join(m.root, path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := string(old)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return m.write(path, text+line+"\n")
}
