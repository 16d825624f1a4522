package testkit

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// chromium is the browser's program in Debian.
const chromium = "chromium"

// answerLimit is how long a browser on a busy machine may take for one question.
const answerLimit = 2 * time.Minute

// leaveLimit is how long its processes may take to end, once they are killed.
const leaveLimit = 5 * time.Second

// Browser is a real Chromium without a window, with one page open. It is driven by its debugging protocol over a pipe. What goes wrong in
// the page, as an exception or something that its policy refuses, fails the test at its end.
type Browser struct {
	t       *testing.T
	to      io.WriteCloser
	session string

	mu      sync.Mutex
	last    int
	waits   map[int]chan answer
	wrong   []string
	Expects string // what is wrong and has this in it is expected
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Chromium starts a browser, which ends with the test. Its window has a size, as Resize.
func Chromium(t *testing.T) *Browser {
	t.Helper()
	if _, err := exec.LookPath(chromium); err != nil {
		t.Fatalf("this test needs the program %s; scripts/chromium installs it", chromium)
	}
	ours, theirs := pipe(t), pipe(t)
	home := t.TempDir()
	cmd := exec.Command(chromium, "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--user-data-dir="+home, "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync", "--ignore-certificate-errors", "--hide-scrollbars", "--log-level=3", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
	cmd.ExtraFiles = []*os.File{ours.read, theirs.write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ours.read.Close()
	theirs.write.Close()
	b := &Browser{t: t, to: ours.write, waits: map[int]chan answer{}}
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.hear(theirs.read)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with its children, which are its process group
		_ = cmd.Wait()                                      // it was killed
		emptied(cmd.Process.Pid)
		ours.write.Close()
		theirs.read.Close()
		<-over
		for _, w := range b.wrong {
			if b.Expects == "" || !strings.Contains(w, b.Expects) {
				t.Errorf("in the page: %s", w)
			}
		}
		if t.Failed() {
			t.Logf("Chromium said: %.4000s", said.String())
		}
	})
	var target struct{ TargetID string }
	b.ask("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.ask("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.ask(domain+".enable", nil, nil)
	}
	b.Resize(1000, 640)
	return b
}

// emptied waits until the processes of a group that was killed are gone: until then they may still write into the folder that is removed
// next. Who leaves them unreaped has it wait in vain, so it gives up.
func emptied(group int) {
	for end := time.Now().Add(leaveLimit); time.Now().Before(end) && !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH); time.Sleep(10 * time.Millisecond) {
	}
}

type ends struct{ read, write *os.File }

func pipe(t *testing.T) ends {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return ends{r, w}
}

// hear reads answers and what the page says, each of which ends with a NUL.
func (b *Browser) hear(from io.Reader) {
	in := bufio.NewReaderSize(from, 1<<20)
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

// ask calls a method of the protocol.
func (b *Browser) ask(method string, params, out any) {
	b.t.Helper()
	if err := b.tries(method, params, out); err != nil {
		b.t.Fatalf("Chromium, %s: %v", method, err)
	}
}

func (b *Browser) tries(method string, params, out any) error {
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
			return errors.New(a.Error.Message)
		case out != nil:
			return json.Unmarshal(a.Result, out)
		}
		return nil
	case <-time.After(answerLimit):
		return fmt.Errorf("no answer in %v", answerLimit)
	}
}

// Visit opens an address.
func (b *Browser) Visit(url string) {
	b.t.Helper()
	var out struct{ ErrorText string }
	if b.ask("Page.navigate", map[string]any{"url": url}, &out); out.ErrorText != "" {
		b.t.Fatalf("%s: %s", url, out.ErrorText)
	}
}

// Eval computes an expression in the page, waits for it if it is a promise, and reads its value.
func (b *Browser) Eval(expression string, out any) {
	b.t.Helper()
	if err := b.evaluates(expression, out); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

func (b *Browser) evaluates(expression string, out any) error {
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	if err := b.tries("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &got); err != nil {
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

// Until waits until an expression is true in the page.
func (b *Browser) Until(limit time.Duration, expression string) {
	b.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		var is bool
		err := b.evaluates("!!("+expression+")", &is)
		if err == nil && is {
			return
		}
		if time.Now().After(end) {
			var text string
			_ = b.evaluates("document.body.innerText.slice(0, 3000)", &text) // for people only
			b.t.Fatalf("waited %v in vain until %s (%v); the page says:\n%s", limit, expression, err, text)
		}
	}
}

// still is where the middle of an element is, as soon as that is the same in two frames: what moves would not be hit.
const still = `(async (selector) => {
	for (let was; ; ) {
		const e = document.querySelector(selector);
		e?.scrollIntoView({block: "center"});
		const r = e?.getBoundingClientRect(), is = r && {x: r.left + r.width / 2, y: r.top + r.height / 2};
		if (is && was && is.x === was.x && is.y === was.y) return is;
		was = is;
		await new Promise((go) => requestAnimationFrame(go));
	}
})(%q)`

// Click presses the mouse on the element that a CSS selector finds, where it is: what is covered is not pressed.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	b.Until(answerLimit, fmt.Sprintf("document.querySelector(%q)", selector))
	var at struct{ X, Y float64 }
	b.Eval(fmt.Sprintf(still, selector), &at)
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		b.ask("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
	}
}

// Type types text where the focus is.
func (b *Browser) Type(text string) {
	b.t.Helper()
	b.ask("Input.insertText", map[string]any{"text": text}, nil)
}

// keys are those that Press knows, with their codes.
var keys = map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}

// Press presses a key, as Enter, Tab or Shift+Tab.
func (b *Browser) Press(key string) {
	b.t.Helper()
	key, shift := strings.CutPrefix(key, "Shift+")
	event := map[string]any{"key": key, "code": key, "windowsVirtualKeyCode": keys[key]}
	if shift {
		event["modifiers"] = 8 // as the protocol numbers them
	}
	if key == "Enter" {
		event["text"] = "\r"
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		event["type"] = kind
		b.ask("Input.dispatchKeyEvent", event, nil)
	}
}

// Resize gives the page a size, a phone's too.
func (b *Browser) Resize(width, height int) {
	b.t.Helper()
	b.ask("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
}

// Prefers sets what the reader prefers, as prefers-color-scheme to dark.
func (b *Browser) Prefers(feature, value string) {
	b.t.Helper()
	b.ask("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": feature, "value": value}}}, nil)
}

// Picture is what the page looks like, as PNG.
func (b *Browser) Picture() []byte {
	b.t.Helper()
	var out struct{ Data string }
	b.ask("Page.captureScreenshot", map[string]any{"format": "png"}, &out)
	text, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}
