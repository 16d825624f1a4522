package xen

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"pagurus/act/host"
	"pagurus/internal/note"
)

// startMinder starts the process that destroys this warden's domain when the warden has ended, also if it was killed and no agent is
// here: a host whose lease is over must not run guests. The minder waits for the end of a pipe that only the warden holds.
func startMinder() (holds io.Closer, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	c := exec.Command("/proc/self/exe")
	c.Args, c.Stdin, c.Stdout, c.Stderr = []string{minderName}, r, os.Stderr, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the guest's minder: %w", err), w.Close())
	}
	go func() { _ = c.Wait() }()
	return w, nil
}

// mindWarden is the minder. What the warden had begun is ended before the domain, which xl may be making.
func mindWarden([]string) error {
	var s spec
	if err := note.Load(specFile, &s); err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := errors.Join(endThoseIn(dir), linkPlugs()); err != nil {
		fmt.Fprintln(os.Stderr, "the guest's minder:", err)
	}
	for said := ""; ; time.Sleep(mindEvery) {
		err := s.Tools.destroy(s.Domain)
		if err == nil {
			return nil
		}
		if said == "" { // as when xenstored does not run
			said = err.Error()
			fmt.Fprintln(os.Stderr, "the guest's minder, which goes on trying:", said)
		}
	}
}

const mindEvery = 5 * time.Second

// endThoseIn ends the processes of a guest's folder, but this one: those that they start meanwhile, too.
func endThoseIn(dir string) error {
	for {
		all := host.ProcessesIn(dir, func(_ int, uid uint32) bool { return uid == 0 })
		all = slices.DeleteFunc(all, func(p host.Process) bool { return p.PID == os.Getpid() })
		if len(all) == 0 {
			return nil
		}
		for _, p := range all {
			if err := p.End(); err != nil {
				return err
			}
		}
	}
}
