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

// Dialogue is a command that is spoken with while it runs.
type Dialogue struct {
	io.Reader // what it prints
	io.Writer // what it is told

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

// End tells it that no more will be said, and waits for it to end. If it failed, the
// error has what it noted.
func (t *Dialogue) End() error { return t.end() }
