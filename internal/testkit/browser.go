package testkit

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"pagurus/internal/chromium"
)

// Browser is a real Chromium without a window, with one page open. What goes wrong in the page, as an exception or something that its
// policy refuses, fails the test at its end.
type Browser struct {
	t       *testing.T
	runs    *chromium.Browser
	Expects string // what is wrong and has this in it is expected
}

// Chromium starts a browser, which ends with the test. Its window has a size, as Resize.
func Chromium(t *testing.T) *Browser {
	t.Helper()
	runs, err := chromium.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &Browser{t: t, runs: runs}
	t.Cleanup(func() {
		wrong, said := runs.Close()
		for _, w := range wrong {
			if b.Expects == "" || !strings.Contains(w, b.Expects) {
				t.Errorf("in the page: %s", w)
			}
		}
		if t.Failed() {
			t.Logf("Chromium said: %.4000s", said)
		}
	})
	b.Resize(1000, 640)
	return b
}

// ask calls a method of the protocol.
func (b *Browser) ask(method string, params, out any) {
	b.t.Helper()
	if err := b.runs.Ask(method, params, out); err != nil {
		b.t.Fatalf("Chromium, %s: %v", method, err)
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
	if err := b.runs.Evaluate(expression, out); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

// Until waits until an expression is true in the page.
func (b *Browser) Until(limit time.Duration, expression string) {
	b.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		var is bool
		err := b.runs.Evaluate("!!("+expression+")", &is)
		if err == nil && is {
			return
		}
		if time.Now().After(end) {
			var text string
			_ = b.runs.Evaluate("document.body.innerText.slice(0, 3000)", &text) // for people only
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
	b.Until(chromium.AnswerLimit, fmt.Sprintf("document.querySelector(%q)", selector))
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
