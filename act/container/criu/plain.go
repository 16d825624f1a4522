// This file has a gzip that copies.
//
// CRIU keeps what is in a container's file systems in memory by `tar --gzip`, which
// takes twenty times as long as not compressing. It does not know what CRIU is.
// Its tests run the program.

package criu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Folder is one for a PATH, in which gzip is a program that copies.
type Folder struct {
	Path   string
	Images *os.File // the folder that it is in

	program *os.File
}

// script passes on what it is given, whichever way.
var script = []byte("#!/bin/sh\nexec cat\n")

// Make makes one inside the folder of images, so that what a killed agent
// leaves goes with these. The program is no file there but memory: the folder's
// file system may forbid running programs, as /run's often does, and a file just
// written cannot be run while another thread's child has it open.
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

// Close removes it.
func (p *Folder) Close() {
	_ = os.RemoveAll(p.Path) // it is in the way of nothing
	p.program.Close()
	if p.Images != nil {
		p.Images.Close()
	}
}

// Memory is a file in memory. Others may run it, unless the host forbids that
// (vm.memfd_noexec=2).
func Memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3, where all may be run
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
