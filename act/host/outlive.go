package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"pagurus/internal/note"
)

// Outliving is a process that goes on when the agent ends. The next agent finds it by its note.
type Outliving struct {
	What    string   // it is, for people: "the relay"
	Program string   // becomes it
	Args    []string // begin with the name under which the program becomes it
	Log     string   // file for all that it prints, which begins again with it
	Note    string   // file for its Process
}

// Start starts the process in a session of its own and notes it. ended is closed when it has ended, if this process lives so
// long. After an error there is none.
func (o Outliving) Start() (p Process, ended <-chan struct{}, err error) {
	if o.Program == "" {
		return p, nil, fmt.Errorf("the program of %s is not beside the agent: install Pagurus again", o.What)
	}
	out, err := os.OpenFile(o.Log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return p, nil, fmt.Errorf("starting %s: %w", o.What, err)
	}
	defer out.Close()
	cmd := exec.Command(o.Program)
	cmd.Args = o.Args
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return p, nil, fmt.Errorf("starting %s: %w", o.What, err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait() // its log says why it ended
	}()
	p, err = Find(cmd.Process.Pid)
	if err == nil {
		err = note.Replace(o.Note, p)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("noting the process of %s: %w", o.What, err), cmd.Process.Kill())
		<-over
		return Process{}, nil, err
	}
	return p, over, nil
}
