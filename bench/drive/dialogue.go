package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Dialogue is a running command with which one can communicate.
type Dialogue struct {
	io.Reader // its output
	io.Writer // its input

	end func() error
}

// Dialogue types one command. When ctx ends the command is told to end, not killed.
func (p Pagurus) Dialogue(ctx context.Context, args ...string) (*Dialogue, error) {
	c := p.command(ctx, args...)
	var said bytes.Buffer
	c.Stderr = &said
	to, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	from, err := c.StdoutPipe()
	if err == nil {
		err = p.Meter.start(c)
	}
	if err != nil {
		return nil, fmt.Errorf("pagurus %s: %w", strings.Join(args, " "), err)
	}
	return &Dialogue{Reader: from, Writer: to, end: func() error {
		_ = to.Close()
		_, _ = io.Copy(io.Discard, from)
		err := p.Meter.wait(c)
		if refused := (*exec.ExitError)(nil); errors.As(err, &refused) {
			err = fmt.Errorf("pagurus %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
		}
		return err
	}}, nil
}

// End closes the command's input and waits for it to end. If the command failed, the error
// contains its notes.
func (t *Dialogue) End() error { return t.end() }
