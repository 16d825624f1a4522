package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/criu"
	"pagurus/act/daemon"
	"pagurus/bench/drive"
)

// runc moves processes as somebody does who has runc and CRIU: checkpoint, copy,
// restore, between two hosts of the lab. All files are in memory, which is the
// best that can be done for it.
type runc struct {
	dir  string // the bench's, in which the program is
	root string // the same image as guests run
	path string // PATH with a CRIU in it that does for this kernel
	runs int
}

const (
	labNetwork = "pagurus-lab-" // begins the names of a lab's hosts' networks
	runcSource = "host1"
	runcTarget = "host2"
	runcPort   = 4997
)

func newRunc(ctx context.Context, dir string) (*runc, error) {
	if _, err := exec.LookPath("runc"); err != nil {
		return nil, errors.New("runc is what moves are compared with: apt-get install runc")
	}
	c, err := criu.Find(ctx)
	if err != nil {
		return nil, err
	}
	folder, err := folderOf(plainImage)
	return &runc{dir: dir, root: filepath.Join(folder, "root.img"), path: filepath.Dir(c.Path) + ":" + os.Getenv("PATH")}, err
}

// place is one host's part of a move.
type place struct {
	host, dir string
}

func (p place) bundle() string { return filepath.Join(p.dir, "bundle") }
func (p place) root() string   { return filepath.Join(p.bundle(), "rootfs") }
func (p place) images() string { return filepath.Join(p.dir, "images") }

// runcArgs are those of runc for a host: each has a folder of its own for what
// it knows of containers.
func (p place) runcArgs(args ...string) []string {
	return append([]string{"--root", filepath.Join(p.dir, "state")}, args...)
}

// move starts a process under runc, moves it and ends it.
func (r *runc) move(ctx context.Context, s size) (m movement, err error) {
	r.runs++
	name := fmt.Sprintf("pagurus-bench-%d", r.runs)
	from, to := place{runcSource, filepath.Join(r.dir, "runc-from")}, place{runcTarget, filepath.Join(r.dir, "runc-to")}
	log := filepath.Join(r.dir, name+".log")
	for _, p := range []place{from, to} {
		defer func() { err = errors.Join(err, r.clear(p, name)) }()
		if err := r.prepare(p, s, log); err != nil {
			return m, err
		}
	}
	if err := r.run(ctx, from, "run", "--detach", "--bundle", from.bundle(), name); err != nil {
		return m, err
	}
	err = drive.Until(ctx, "the program under runc did not say START", func() bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), "START")
	})
	if err != nil {
		return m, err
	}
	if err := drive.Pause(ctx, quietTime); err != nil {
		return m, err
	}
	options := []string{"--tcp-established", "--file-locks", "--ext-unix-sk", "--manage-cgroups-mode", "soft"}
	m.begun = time.Now()
	err = r.run(ctx, from, append(append([]string{"checkpoint", "--image-path", from.images(), "--work-path", from.images()}, options...), name)...)
	if err != nil {
		return m, err
	}
	if err := carry(ctx, from, to); err != nil {
		return m, err
	}
	err = r.run(ctx, to, append(append([]string{"restore", "--detach", "--bundle", to.bundle(), "--image-path", to.images(), "--work-path", to.images()}, options...), name)...)
	if err != nil {
		return m, err
	}
	m.took = time.Since(m.begun)
	if err := drive.Pause(ctx, quietTime); err != nil {
		return m, err
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return m, err
	}
	return m, m.noticed(string(text))
}

// prepare makes a host's bundle, in memory.
func (r *runc) prepare(p place, s size, log string) error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("pagurus-bench", p.dir, "tmpfs", 0, "mode=0700,size=100%"); err != nil {
		return fmt.Errorf("mount memory on %s: %w", p.dir, err)
	}
	for _, dir := range []string{p.root(), p.images()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if out, err := exec.Command("mount", "-o", "loop,ro", r.root, p.root()).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", r.root, err, out)
	}
	settings := filepath.Join(p.dir, "criu.conf")
	if err := os.WriteFile(settings, []byte("network-lock skip\n"), 0o600); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r.config(p, s, log, settings), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.bundle(), "config.json"), text, 0o600)
}

// config is the bundle's config.json.
func (r *runc) config(p place, s size, log, settings string) any {
	type object = map[string]any
	memory := func(at string) object {
		return object{"destination": at, "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev"}}
	}
	return object{
		"ociVersion": "1.0.2",
		"hostname":   "runc",
		"root":       object{"path": "rootfs", "readonly": true},
		"process":    object{"cwd": "/", "args": append(s.command("/srv/still"), "/srv/"+filepath.Base(log)), "env": []string{"PATH=/usr/bin:/bin"}, "user": object{"uid": 0, "gid": 0}},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
			memory("/dev/shm"), memory("/tmp"), memory("/run"),
			{"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": []string{"newinstance", "ptmxmode=0666"}},
			{"destination": "/srv", "type": "bind", "source": r.dir, "options": []string{"bind", "rw"}},
		},
		"annotations": object{"org.criu.config": settings},
		"linux": object{
			"namespaces": []object{
				{"type": "pid"}, {"type": "mount"}, {"type": "uts"}, {"type": "ipc"},
				{"type": "network", "path": "/run/netns/" + labNetwork + p.host},
			},
		},
	}
}

// run calls runc. The container's streams are not read.
func (r *runc) run(ctx context.Context, p place, args ...string) error {
	c := exec.CommandContext(ctx, "runc", p.runcArgs(args...)...)
	c.Env = append(os.Environ(), "PATH="+r.path)
	notes, err := os.CreateTemp(p.dir, "runc")
	if err != nil {
		return err
	}
	defer notes.Close()
	c.Stderr = notes
	if err := c.Run(); err != nil {
		why, _ := os.ReadFile(notes.Name())
		return fmt.Errorf("runc %s: %w: %s", args[0], err, strings.TrimSpace(string(why)))
	}
	return nil
}

// clear ends what a host has of the container, and removes its folder.
func (r *runc) clear(p place, name string) error {
	_ = exec.Command("runc", p.runcArgs("delete", "--force", name)...).Run() // it may not be there
	var errs []error
	for _, dir := range []string{p.root(), p.dir} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// carry copies images from host to host by tar over one TCP connection of the
// lab's network.
func carry(ctx context.Context, from, to place) error {
	var listener net.Listener
	err := daemon.Namespace(labNetwork + to.host).Do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", runcPort))
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	unpacked := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = throughTar(ctx, conn, "-C", to.images(), "-xf", "-")
		}
		unpacked <- err
	}()
	var conn net.Conn
	err = daemon.Namespace(labNetwork + from.host).Do(func() (err error) {
		conn, err = net.Dial("tcp", fmt.Sprintf("198.18.0.%s:%d", strings.TrimPrefix(to.host, "host"), runcPort))
		return err
	})
	if err != nil {
		return err
	}
	if err := throughTar(ctx, conn, "-C", from.images(), "-cf", "-", "."); err != nil {
		return err
	}
	return <-unpacked
}

// throughTar runs tar with a connection as its streams: the connection
// itself, so that nothing is copied here.
func throughTar(ctx context.Context, conn net.Conn, args ...string) error {
	defer conn.Close()
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	defer file.Close()
	c := exec.CommandContext(ctx, "tar", args...)
	var why bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = file, file, &why
	if err := c.Run(); err != nil {
		return fmt.Errorf("tar %s: %w: %s", strings.Join(args, " "), err, why.String())
	}
	return nil
}
