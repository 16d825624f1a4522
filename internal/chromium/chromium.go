// Package chromium runs a real Chromium without a window, with one page open, and drives it by its debugging protocol over a pipe.
// Tests and measurements look at the controller's page in it; scripts/chromium installs it.
package chromium

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// program is the browser's in Debian.
const program = "chromium"

// AnswerLimit is how long a browser on a busy machine may take for one question.
const AnswerLimit = 2 * time.Minute

// leaveLimit is how long its processes may take to end, once they are killed.
const leaveLimit = 5 * time.Second

// Browser is a running one.
type Browser struct {
	cmd     *exec.Cmd
	said    bytes.Buffer
	to      *os.File
	from    *os.File
	over    chan struct{}
	session string

	mu    sync.Mutex
	last  int
	waits map[int]chan answer // nil: it has ended
	wrong []string
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Start starts a browser, which keeps what it has to in a folder, and opens an empty page. After an error it does not run.
func Start(home string) (b *Browser, err error) {
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("this needs the program %s; scripts/chromium installs it", program)
	}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirIn.Close()
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		ourOut.Close()
		return nil, err
	}
	defer theirOut.Close()
	b = &Browser{to: ourOut, from: ourIn, over: make(chan struct{}), waits: map[int]chan answer{}}
	b.cmd = exec.Command(program, "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--user-data-dir="+home, "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync", "--ignore-certificate-errors", "--hide-scrollbars", "--log-level=3", "about:blank")
	b.cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
	b.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	b.cmd.Stderr = &b.said
	b.cmd.WaitDelay = time.Second
	if err := b.cmd.Start(); err != nil {
		ourOut.Close()
		ourIn.Close()
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	go b.hear()
	if err := b.open(); err != nil {
		_, said := b.Close()
		return nil, fmt.Errorf("%w; it said: %.4000s", err, said)
	}
	return b, nil
}

// open opens the page.
func (b *Browser) open() error {
	var target struct{ TargetID string }
	var attached struct{ SessionID string }
	if err := b.Ask("Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return err
	}
	if err := b.Ask("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return err
	}
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		if err := b.Ask(domain+".enable", nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// Close ends it. wrong is what went wrong in the page, as an exception or something that its policy refuses; said is what the browser wrote.
func (b *Browser) Close() (wrong []string, said string) {
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL) // with its children, which are its process group
	_ = b.cmd.Wait()                                      // it was killed
	emptied(b.cmd.Process.Pid)
	b.to.Close()
	b.from.Close()
	<-b.over
	return b.wrong, b.said.String()
}

// emptied waits until the processes of a group that was killed are gone: until then they may still write into the folder that is removed
// next. Who leaves them unreaped has it wait in vain, so it gives up.
func emptied(group int) {
	for end := time.Now().Add(leaveLimit); time.Now().Before(end) && !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH); time.Sleep(10 * time.Millisecond) {
	}
}

// hear reads answers and what the page says, each of which ends with a NUL.
func (b *Browser) hear() {
	defer close(b.over)
	in := bufio.NewReaderSize(io.Reader(b.from), 1<<20)
	for {
		text, err := in.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			for id, c := range b.waits {
				close(c)
				delete(b.waits, id)
			}
			b.waits = nil
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			answer
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.waits[m.ID]; c != nil {
			delete(b.waits, m.ID)
			c <- m.answer
		}
		switch m.Method {
		case "Runtime.exceptionThrown":
			b.wrong = append(b.wrong, string(m.Params))
		case "Log.entryAdded":
			if bytes.Contains(m.Params, []byte(`"level":"error"`)) {
				b.wrong = append(b.wrong, string(m.Params))
			}
		}
		b.mu.Unlock()
	}
}

// Ask calls a method of the protocol.
func (b *Browser) Ask(method string, params, out any) error {
	b.mu.Lock()
	if b.waits == nil {
		b.mu.Unlock()
		return errors.New("it has ended")
	}
	b.last++
	id, c := b.last, make(chan answer, 1)
	b.waits[id] = c
	b.mu.Unlock()
	m := map[string]any{"id": id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case a, open := <-c:
		switch {
		case !open:
			return errors.New("it has ended")
		case a.Error != nil:
			return fmt.Errorf("%s: %s", method, a.Error.Message)
		case out != nil:
			return json.Unmarshal(a.Result, out)
		}
		return nil
	case <-time.After(AnswerLimit):
		return fmt.Errorf("no answer in %v", AnswerLimit)
	}
}

// Evaluate computes an expression in the page, waits for it if it is a promise, and reads its value.
func (b *Browser) Evaluate(expression string, out any) error {
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	if err := b.Ask("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &got); err != nil {
		return err
	}
	if got.ExceptionDetails != nil {
		return errors.New(got.ExceptionDetails.Exception.Description)
	}
	if out == nil || len(got.Result.Value) == 0 {
		return nil
	}
	return json.Unmarshal(got.Result.Value, out)
}
