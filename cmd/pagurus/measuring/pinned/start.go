package pinned

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// worker is a guest's process.
type worker struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer
}

// start starts one and returns when it waits for its time.
func (c *Core) start(ctx context.Context, kind string) (*worker, error) {
	args := append(c.worker[1:len(c.worker):len(c.worker)], kind, strconv.Itoa(c.cpu))
	w := &worker{cmd: exec.CommandContext(ctx, c.worker[0], args...)}
	// The language would interrupt work and sleep by a signal now and then.
	w.cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	w.cmd.Stderr = &w.errs
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	if line, err := w.out.ReadString('\n'); err != nil || line != ready+"\n" {
		w.end()
		return nil, fmt.Errorf("a worker did not get ready: %w: %s", orOdd(err, line), strings.TrimSpace(w.errs.String()))
	}
	return w, nil
}

func orOdd(err error, line string) error {
	if err == nil {
		return fmt.Errorf("it said %q", line)
	}
	return err
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// tell says when to begin and for how long.
func (w *worker) tell(begin int64, lasts time.Duration) error {
	_, err := fmt.Fprintln(w.in, begin, int64(lasts))
	return err
}

// said waits for its end and gives what it said.
func (w *worker) said(ctx context.Context) (string, error) {
	text, err := io.ReadAll(w.out)
	if e := w.cmd.Wait(); err == nil {
		err = e
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("a worker: %w: %s", err, strings.TrimSpace(w.errs.String()))
	}
	return string(text), nil
}

// end ends one that is there still.
func (w *worker) end() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}
