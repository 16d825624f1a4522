package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Memory is exhausted in a control group of our own, into which a guest's QEMU is put.
// Version 1 has the first files, version 2 the others.
const (
	memoryRoot   = "/sys/fs/cgroup/memory"
	unifiedRoot  = "/sys/fs/cgroup"
	squeezeGroup = "pagurus-chaos"
	squeezeBytes = 12 << 20 // what it may still take: less than any guest's memory
)

// squeeze keeps a guest's QEMU on one host from getting more memory; ease undoes it. The
// kernel kills the QEMU if it asks for more.
func squeeze(guest fleet.GuestID, host fleet.HostID, number int) (ease func() error, err error) {
	c, err := find(guest, host)
	if err != nil {
		return nil, err
	}
	root, limit, none := memoryRoot, "memory.limit_in_bytes", "-1"
	if _, err := os.Stat(filepath.Join(root, limit)); err != nil {
		root, limit, none = unifiedRoot, "memory.max", "max"
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return nil, fmt.Errorf("limiting memory: %w", err)
		}
	}
	group := filepath.Join(root, fmt.Sprintf("%s-%d", squeezeGroup, number))
	if err := os.Mkdir(group, 0o755); err != nil {
		return nil, err
	}
	back := func() error {
		err := os.WriteFile(filepath.Join(group, limit), []byte(none), 0)
		text, e := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(text)) {
			if e := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(pid), 0); e != nil && !errors.Is(e, unix.ESRCH) {
				err = errors.Join(err, e)
			}
		}
		return errors.Join(err, e, removeGroup(group))
	}
	err = os.WriteFile(filepath.Join(group, limit), []byte(strconv.Itoa(squeezeBytes)), 0)
	if err == nil {
		err = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(c.PID)), 0)
	}
	if errors.Is(err, unix.ESRCH) {
		err = errMissed
	}
	if err != nil {
		return nil, errors.Join(err, back())
	}
	return back, nil
}

// removeGroup removes a group as soon as its killed processes are gone.
func removeGroup(group string) error {
	var err error
	for range 50 {
		if err = os.Remove(group); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// disk is a small disk in memory, with room for many times a lab's store.
type disk struct{ folder string }

// store is the disk of the lab's store.
var store = disk{labState + "/etcd"}

const (
	diskSize   = "size=256m,mode=700"
	nearlyFull = 20 << 20 // left on a disk that is nearly full
)

// mount mounts the disk before the lab starts; the lab unmounts it at its end.
func (d disk) mount() error {
	if err := os.MkdirAll(d.folder, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", d.folder, "tmpfs", 0, diskSize); err != nil {
		return fmt.Errorf("mounting a small disk for the store: %w", err)
	}
	return nil
}

// fill leaves left bytes free on the disk; empty undoes it.
func (d disk) fill(left int64) (empty func() error, err error) {
	f, err := os.CreateTemp(d.folder, "ballast-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	empty = func() error {
		// An agent that starts meanwhile removes foreign files.
		if err := os.Remove(f.Name()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.folder, &st); err != nil {
		return nil, errors.Join(err, empty())
	}
	for take := int64(st.Bavail)*st.Bsize - left; take >= st.Bsize; {
		err := unix.Fallocate(int(f.Fd()), 0, 0, take)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOSPC) {
			return nil, errors.Join(fmt.Errorf("filling the store's disk: %w", err), empty())
		}
		take /= 2 // some of it was taken meanwhile
	}
	return empty, nil
}
