package measuring

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// worker starts a guest's processes and reads what they have done.
type worker struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer

	mutex sync.Mutex
	pids  []int // the guest's
	over  bool  // it has ended, and they before it
}

// start starts one and returns when it waits for its time.
func (c *Core) start(ctx context.Context, kind string) (*worker, error) {
	args := append(c.worker[1:len(c.worker):len(c.worker)], kind, strconv.Itoa(c.cpu))
	w := &worker{cmd: exec.Command(c.worker[0], args...)}
	w.cmd.Stderr = &w.errs
	// Who types Ctrl-C ends the bench, and that ends workers in good order.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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
	context.AfterFunc(ctx, w.stop)
	line, err := w.out.ReadString('\n')
	if err == nil {
		w.mutex.Lock()
		w.pids, err = numbers(line)
		w.mutex.Unlock()
	}
	if err != nil {
		w.end()
		return nil, fmt.Errorf("a worker did not get ready: %w: %s", err, strings.TrimSpace(w.errs.String()))
	}
	return w, nil
}

// numbers reads those of a worker's processes.
func numbers(line string) (pids []int, err error) {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != ready {
		return nil, fmt.Errorf("it said %q", line)
	}
	for _, word := range words[1:] {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 1 {
			return nil, fmt.Errorf("it said %q", line)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// tell says when to begin and for how long.
func (w *worker) tell(begin int64, lasts time.Duration) error {
	_, err := fmt.Fprintln(w.in, begin, int64(lasts))
	return err
}

// said waits for its end and gives what it said.
func (w *worker) said(ctx context.Context) (string, error) {
	text, err := io.ReadAll(w.out)
	if e := w.wait(); err == nil {
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

func (w *worker) wait() error {
	err := w.cmd.Wait()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.over = true
	return err
}

// stop ends the guest's processes: then the worker ends, too, who alone can have the
// kernel forget them.
func (w *worker) stop() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.over {
		return
	}
	_ = w.in.Close()
	for _, pid := range w.pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// leaveTime is how long a worker may take to end whose processes have.
const leaveTime = 2 * time.Second

// end ends one that is there still.
func (w *worker) end() {
	w.stop()
	kill := time.AfterFunc(leaveTime, func() { _ = w.cmd.Process.Kill() })
	defer kill.Stop()
	_ = w.wait()
}
