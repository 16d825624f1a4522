// Package thread calls functions on OS threads that end afterwards. So a function's changes
// to its thread, such as its network, affect no other code, even if they cannot be undone.
// It also tells which CPUs threads may use.
//
// It does not know what is called. Its tests run against the kernel.
package thread

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Own calls f on a thread of its own and returns its error.
func Own(f func() error) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The process's first thread does not end with its goroutine. It is kept busy
			// until another thread has called f.
			ended <- Own(f)
			runtime.UnlockOSThread()
			return
		}
		ended <- f()
	}()
	return <-ended
}

// In calls f on a thread of its own in a network namespace.
func In(network *os.File, f func() error) error {
	return Own(func() error {
		if err := enter(network); err != nil {
			return err
		}
		return f()
	})
}

// Visit calls f on the caller's thread, which keeps its other properties, in a network
// namespace given by its file. After an error f may have been called.
func Visit(network string, f func() error) error {
	there, err := os.Open(network)
	if err != nil {
		return fmt.Errorf("open its network: %w", err)
	}
	defer there.Close()
	runtime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the own network: %w", err)
	}
	defer here.Close()
	if err = enter(there); err == nil {
		err = f()
	}
	if back := enter(here); back != nil {
		return errors.Join(err, back) // no other code may run on this thread: it stays locked
	}
	runtime.UnlockOSThread()
	return err
}

func enter(network *os.File) error {
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network: %w", err)
	}
	return nil
}
