// Package top is the cluster on one screen of a terminal: lists to sort, filter and drill into, and
// the requests that change something, each with its predicted cost and a question before it.
//
// Model is pure: messages in, a screen and at most one Effect out, without clock, terminal or
// connection. Run, in run.go, is its edge. It must not know how a controller is reached. The
// model's tests only send messages; a script in the system ring types on a real terminal.
package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"pagurus/fleet"
	"pagurus/show/view"
)

// Model is the whole state of the screen.
type Model struct {
	color         bool
	width, height int

	now  shown // the newest cluster
	seen bool  // there was one
	away string
	said string // the result of the last request, until a key is pressed

	place  place
	trail  []trace // the way here, for going back
	rows   []row   // of the place: filtered and sorted
	cursor int
	offset int
	orders [pages]order
	filter string
	typing bool // keys go to the filter

	dialog *dialog
	panel  *panel
	number int // of the last question to the controller; answers to earlier ones do not count
}

// trace is a place that was left, and the row on which it was.
type trace struct {
	place  place
	filter string
	key    string
}

// New is a screen without a cluster yet.
func New(color bool) Model {
	m := Model{color: color, width: 80, height: 24}
	m.orders[jobsPage].reverse, m.orders[movesPage].reverse = true, true // the newest first
	return m
}

// Arrived brings the cluster as it is now.
type Arrived struct{ now shown }

// Arrive adds up a cluster. Of a large one that takes a while, in which keys need not wait.
func Arrive(c view.Cluster) Arrived { return Arrived{readShown(c)} }

// Away says that the controller does not answer; empty: it does again.
type Away struct{ Why string }

// Foreseen brings the prediction for a request.
type Foreseen struct {
	Number   int
	Forecast fleet.Forecast
	Err      error
}

// Answered brings the result of a request.
type Answered struct {
	What   string
	Answer fleet.Answer
	Err    error
}

// Explained brings an explanation.
type Explained struct {
	Number int
	Lines  []string
	Err    error
}

// Effect is what the model wants to have done outside.
type Effect interface{ effect() }

// Predict asks what a request would cost. Foreseen answers it.
type Predict struct {
	Number  int
	Request fleet.Request
}

// Order makes a request. Answered answers it.
type Order struct {
	What    string
	Request fleet.Request
}

// Explain asks for an explanation of a guest, a job or a host. Explained answers it.
type Explain struct {
	Number int
	ID     string
}

// Quit ends the screen.
type Quit struct{}

// Pause gives the terminal back to the shell until the program is continued.
type Pause struct{}

func (Predict) effect() {}
func (Order) effect()   {}
func (Explain) effect() {}
func (Quit) effect()    {}
func (Pause) effect()   {}

// Update is the model after a message.
func (m Model) Update(msg tea.Msg) (Model, Effect) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 1), max(msg.Height, 1)
		m.scroll()
	case Arrived:
		key := m.key() // by the cluster that the rows are of
		m.now, m.seen, m.away, m.rows = msg.now, true, "", nil
		m.arrange()
		m.point(key)
	case Away:
		m.away = view.Clean(msg.Why)
	case Foreseen:
		if d := m.dialog; d != nil && d.number == msg.Number {
			next := *d
			next.foresee(msg)
			m.dialog = &next
		}
	case Answered:
		m.said = answerText(msg)
	case Explained:
		if m.panel != nil && m.panel.number == msg.Number {
			next := *m.panel
			next.lines = cleanLines(msg.Lines)
			if msg.Err != nil {
				next.lines = []string{"! " + view.Clean(msg.Err.Error())}
			}
			m.panel = &next
		}
	case tea.PasteMsg: // what is pasted is text, and never a command
		m.typed(msg.Content)
	case tea.KeyPressMsg:
		return m.press(msg)
	}
	return m, nil
}

// answerText says how a request went, in one line.
func answerText(a Answered) string {
	if a.Err != nil {
		return "! " + view.Clean(a.What+": "+a.Err.Error())
	}
	words := []string{"asked for"}
	if n := len(a.Answer.Moves); n > 0 {
		words = []string{view.Count(n, "move")}
		if n <= 4 {
			words = []string{view.List(a.Answer.Moves)}
		}
	}
	words = append(words, a.Answer.Notes...)
	return view.Clean(fmt.Sprintf("%s: %s", a.What, strings.Join(words, "; ")))
}

// cleanLines makes lines harmless, which hold other people's texts.
func cleanLines(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = view.Clean(l)
	}
	return out
}

// selected is the row under the cursor.
func (m Model) selected() (row, bool) {
	if m.cursor < 0 || m.cursor >= len(m.rows) {
		return row{}, false
	}
	return m.rows[m.cursor], true
}

// key identifies the row under the cursor; empty: there is none.
func (m Model) key() string {
	if r, ok := m.selected(); ok {
		return m.place.page.of().key(&m.now, r)
	}
	return ""
}

// visit shows another place, and remembers this one.
func (m *Model) visit(p place) {
	m.trail = append(m.trail[:len(m.trail):len(m.trail)], trace{m.place, m.filter, m.key()})
	m.place, m.filter, m.rows, m.cursor, m.offset = p, "", nil, 0, 0
	m.arrange()
}

// leave goes back to the place before.
func (m *Model) leave() {
	if len(m.trail) == 0 {
		return
	}
	last := m.trail[len(m.trail)-1]
	m.trail = m.trail[:len(m.trail)-1]
	m.place, m.filter, m.rows, m.cursor, m.offset = last.place, last.filter, nil, 0, 0
	m.arrange()
	m.point(last.key)
}

// open shows a page from its beginning.
func (m *Model) open(p page) {
	m.trail, m.place, m.filter, m.rows, m.cursor, m.offset = nil, place{page: p}, "", nil, 0, 0
	m.arrange()
}
