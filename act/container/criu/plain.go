// CRIU stores a container's file systems in memory with `tar --gzip`, which takes twenty
// times as long as without compression. This file provides a gzip that only copies. It
// does not know what CRIU is. Its tests run the program.

package criu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Folder is a folder for PATH, with a gzip that only copies.
type Folder struct {
	Path   string
	Images *os.File // the folder that contains it

	program *os.File
}

// script copies its input, whether it is asked to compress or to decompress.
var script = []byte("#!/bin/sh\nexec cat\n")

// Make makes a Folder in the folder of images, so that it is removed with them if the
// agent is killed. The program is in memory, because the folder's file system may forbid
// running programs, as /run's often does. Also, a file that was just written cannot be
// executed while another thread's child has it open.
func Make(images string) (*Folder, error) {
	program, err := Memory("gzip")
	if err != nil {
		return nil, err
	}
	p := &Folder{Path: filepath.Join(images, ".path"), program: program}
	_, err = program.Write(script)
	if err == nil {
		p.Images, err = os.Open(images)
	}
	if err == nil {
		err = os.RemoveAll(p.Path)
	}
	if err == nil {
		err = os.Mkdir(p.Path, 0o700)
	}
	if err == nil {
		err = os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), program.Fd()), filepath.Join(p.Path, "gzip"))
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("make a plain gzip for criu: %w", err)
	}
	return p, nil
}

// Close removes the folder.
func (p *Folder) Close() {
	_ = os.RemoveAll(p.Path) // a leftover does no harm
	p.program.Close()
	if p.Images != nil {
		p.Images.Close()
	}
}

// Memory makes a file in memory. Programs may execute it, unless the host forbids that
// (vm.memfd_noexec=2).
func Memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3, where all such files are executable
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
