package top

import (
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"pagurus/fleet"
	"pagurus/show/view"
)

// press is the model after a key. What is on top of the list has it: a question, then the filter
// that is typed, then a text.
func (m Model) press(msg tea.KeyPressMsg) (Model, Effect) {
	key := msg.String()
	switch key {
	case "ctrl+c":
		return m, Quit{}
	case "ctrl+z":
		return m, Pause{}
	}
	m.said = ""
	switch {
	case m.dialog != nil:
		return m.pressDialog(key, msg.Text)
	case m.typing:
		m.pressFilter(key, msg.Text)
		return m, nil
	case m.panel != nil:
		return m.pressPanel(key)
	}
	if m.walk(key) {
		return m, nil
	}
	return m.pressList(key)
}

// walk moves the cursor, if the key does.
func (m *Model) walk(key string) bool {
	page := max(m.layout().rows-1, 1)
	by, ok := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "ctrl+b": -page, "pgdown": page, "ctrl+f": page, "space": page,
		"home": -len(m.rows), "g": -len(m.rows), "end": len(m.rows), "G": len(m.rows)}[key]
	if ok {
		m.cursor += by
		m.scroll()
	}
	return ok
}

// pressList is a key on a list.
func (m Model) pressList(key string) (Model, Effect) {
	switch key {
	case "q":
		return m, Quit{}
	case "?", "h", "f1":
		m.panel = &panel{title: "keys", lines: helpLines}
	case "1", "2", "3", "4", "5":
		m.open(page(key[0] - '1'))
	case "tab", "right":
		m.open((m.place.page + 1) % pages)
	case "shift+tab", "left":
		m.open((m.place.page + pages - 1) % pages)
	case "esc", "backspace":
		if m.filter != "" {
			m.filter = ""
			m.arrange()
		} else {
			m.leave()
		}
	case "/":
		m.typing = true
	case "s", "S", "r":
		m.sortBy(key)
	case "enter":
		m.enter()
	case "e":
		return m.explain()
	case "d", "u", "m", "c":
		return m.ask(key)
	}
	return m, nil
}

// sortBy sorts by the next column, the one before, or the other way round.
func (m *Model) sortBy(key string) {
	o, n := &m.orders[m.place.page], len(m.place.page.of().columns)
	switch key {
	case "s":
		o.column = (o.column + 1) % n
	case "S":
		o.column = (o.column + n - 1) % n
	case "r":
		o.reverse = !o.reverse
	}
	m.arrange()
}

// enter shows what belongs to the selected thing: a site's hosts, a host's or a job's guests, a
// guest's moves, all of a move.
func (m *Model) enter() {
	r, ok := m.selected()
	if !ok {
		return
	}
	list := m.place.page.of()
	if list.opens != nil {
		m.visit(list.opens(&m.now, r))
		return
	}
	m.panel = &panel{title: "move " + string(m.now.Moves[r.at].ID), move: m.now.Moves[r.at].ID}
}

// explain asks the controller about the selected thing. Of a move everything is here already.
func (m Model) explain() (Model, Effect) {
	r, ok := m.selected()
	switch {
	case !ok:
	case m.place.page == movesPage:
		move := m.now.Moves[r.at]
		m.panel = &panel{title: "explain " + string(move.ID), lines: cleanLines(move.Explain(m.now.At))}
	case m.place.page.of().names != nil:
		id := m.place.page.of().names(&m.now, r)
		m.number++
		m.panel = &panel{title: "explain " + id, lines: []string{"asking the controller…"}, number: m.number}
		return m, Explain{m.number, id}
	}
	return m, nil
}

// pressFilter edits the filter.
func (m *Model) pressFilter(key, text string) {
	switch key {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
		m.arrange()
	default:
		m.filter = edit(m.filter, key, text)
		m.cursor, m.offset = 0, 0
		m.arrange()
	}
}

// typed takes pasted text where text is expected.
func (m *Model) typed(text string) {
	switch {
	case m.dialog != nil && m.dialog.prompting:
		next := *m.dialog
		next.input += view.Clean(strings.TrimSpace(text))
		m.dialog = &next
	case m.dialog == nil && m.typing:
		m.pressFilter("", text)
	}
}

// edit is a line of input after a key.
func edit(line, key, text string) string {
	switch key {
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(line)
		return line[:len(line)-n]
	case "ctrl+u":
		return ""
	}
	return line + view.Clean(text)
}

// panel is a text over the list.
type panel struct {
	title  string
	lines  []string
	offset int
	move   fleet.MoveID // all of this move; empty: lines
	number int          // of the question to which it is the answer
}

// pressPanel is a key on a text.
func (m Model) pressPanel(key string) (Model, Effect) {
	next := *m.panel
	body := max(m.layout().body-1, 1)
	switch key {
	case "q", "esc", "enter", "backspace", "?":
		m.panel = nil
		return m, nil
	case "up", "k":
		next.offset--
	case "down", "j":
		next.offset++
	case "pgup", "ctrl+b":
		next.offset -= body
	case "pgdown", "ctrl+f", "space":
		next.offset += body
	case "home", "g":
		next.offset = 0
	case "end", "G":
		next.offset = len(m.panelLines())
	}
	next.offset = max(0, min(next.offset, len(m.panelLines())-body))
	m.panel = &next
	return m, nil
}

// panelLines are the lines of the text over the list. A move's change while it is shown.
func (m Model) panelLines() []string {
	if m.panel.move == "" {
		return m.panel.lines
	}
	move, ok := m.now.Move(m.panel.move)
	if !ok {
		return []string{"the controller no longer knows it"}
	}
	return cleanLines(strings.Split(strings.TrimRight(move.Show(m.now.At), "\n"), "\n"))
}
