package top

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"pagurus/show/view"
)

// Styles. Without colour only the first two are used.
const (
	plain   = "\x1b[m"
	inverse = "\x1b[7m"
	bold    = "\x1b[1m"
	red     = "\x1b[31m"
	green   = "\x1b[32m"
	yellow  = "\x1b[33m"
)

// tints are the colours of states.
var tints = map[string]string{
	"up": green, "running": green, "finished": green, "exit 0": green,
	"draining": yellow, "silent": yellow, "moving": yellow, "pending": yellow, "suspended": yellow, "starting": yellow, "stopping": yellow,
	"returning": yellow, "present": yellow, "leaving": yellow, "aborted": yellow, "cancelled": yellow,
	"gone": red, "lost": red, "failed": red,
}

// gap is between two columns.
const gap = 1

// layout is how many lines each part has.
type layout struct {
	glance int // the cluster in numbers
	tabs   bool
	status bool
	hints  bool
	body   int // below that: a list with its head, or a text
	rows   int // of a list
}

// layout divides the height. Low terminals keep the list.
func (m Model) layout() layout {
	l := layout{tabs: m.height >= 4, status: m.height >= 5, hints: m.height >= 8}
	switch {
	case m.height >= 10:
		l.glance = 2
	case m.height >= 6:
		l.glance = 1
	}
	l.body = m.height - l.glance
	for _, has := range []bool{l.tabs, l.status, l.hints} {
		if has {
			l.body--
		}
	}
	l.rows = max(l.body-1, 1)
	return l
}

// View draws the screen: at most as many lines as the terminal has, none of them too wide. It
// formats only the rows that are seen.
func (m Model) View() string {
	l := m.layout()
	lines := m.glanceLines()[:l.glance]
	if l.tabs {
		lines = append(lines, m.tabLine())
	}
	hint := "? help  q quit  s sort  / filter  Enter open  e explain" + keysOf[m.place.page]
	var body []string
	switch {
	case m.dialog != nil:
		title, costs, keys := m.dialog.lines(m)
		hint = keys
		body = append([]string{m.style(bold, title+"?")}, costs...)
		if len(body) > l.body-1 && l.body > 2 { // the question must be seen
			body = body[:l.body-1]
		}
		if !l.hints {
			body = append(body, keys)
		}
	case m.panel != nil:
		all := m.panelLines()
		hint = "↑↓ scroll  Esc back"
		body = append([]string{m.style(bold, view.Clean(m.panel.title))}, all[min(m.panel.offset, len(all)):]...)
	default:
		body = m.listLines(l)
	}
	for i := range l.body {
		line := ""
		if i < len(body) {
			line = body[i]
		}
		lines = append(lines, line)
	}
	if l.status {
		lines = append(lines, m.statusLine())
	}
	if l.hints {
		lines = append(lines, hint)
	}
	for i, line := range lines {
		if ansi.StringWidthWc(line) > m.width {
			line = ansi.TruncateWc(line, m.width, "…") + plain
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}

// keysOf are the keys that change something on a page.
var keysOf = [pages]string{hostsPage: "  d drain  u undrain", guestsPage: "  m move", jobsPage: "  m move  c cancel", movesPage: "  c cancel"}

// style puts a text into a style; a colour only where there are colours.
func (m Model) style(style, text string) string {
	if style == "" || !m.color && style != inverse && style != bold {
		return text
	}
	return style + text + plain
}

// glanceLines are the cluster in numbers.
func (m Model) glanceLines() []string {
	if !m.seen {
		return []string{m.style(bold, "pagurus top") + "  waiting for the controller…", ""}
	}
	g := m.now.glance
	first := m.style(bold, "pagurus top") + "  " + m.now.At.Local().Format("15:04:05") + "  " + fmt.Sprintf("%d of %s up", g.up, view.Count(g.hosts, "host"))
	for _, more := range []struct {
		n    int
		word string
	}{{g.draining, "draining"}, {g.gone, "gone"}} {
		if more.n > 0 {
			first += fmt.Sprintf(", %d %s", more.n, more.word)
		}
	}
	first += fmt.Sprintf(" · %s running", view.Count(g.running, "guest"))
	if g.others > 0 {
		first += fmt.Sprintf(", %d moving or changing", g.others)
	}
	first += fmt.Sprintf(" · %s, %d waiting · %s under way", view.Count(g.jobs, "job"), g.waiting, view.Count(g.moves, "move"))
	second := fmt.Sprintf("CPUs %.1f of %d used · memory %s of %s free", g.load, g.cpus, view.Bytes(g.free), view.Bytes(g.memory))
	if g.owners+g.away > 0 {
		second += fmt.Sprintf(" · owners: %d there, %d away", g.owners, g.away)
	}
	if g.stall != "" {
		second += " · last stall " + view.Clean(g.stall)
	}
	return []string{first, second}
}

// tabLine names the lists, the place and the filter.
func (m Model) tabLine() string {
	var words []string
	for p := range pages {
		word := fmt.Sprintf(" %d %s ", p+1, p.of().name)
		if p == m.place.page {
			word = m.style(inverse, word)
		}
		words = append(words, word)
	}
	line := strings.Join(words, "")
	if m.place.of != "" {
		id := m.place.id
		if id == "" {
			id = "(none)"
		}
		line += " of " + m.place.of + " " + view.Clean(id)
	}
	if m.typing {
		line += "  /" + m.filter + "█"
	} else if m.filter != "" {
		line += fmt.Sprintf("  with %q", m.filter)
	}
	if m.seen {
		line += fmt.Sprintf("  (%d)", len(m.rows))
	}
	return line
}

// statusLine is what the user should know: how the last request went, that the controller is
// away, or what the tables of `pagurus` note about the selected thing.
func (m Model) statusLine() string {
	switch {
	case m.said != "" && strings.HasPrefix(m.said, "!"):
		return m.style(red, m.said)
	case m.said != "":
		return m.said
	case m.away != "":
		return m.style(yellow, "! "+m.away)
	case m.panel != nil || m.dialog != nil:
		return ""
	}
	notes := m.notesOf()
	if len(notes) == 0 {
		return ""
	}
	text := "! " + view.Clean(notes[0])
	if len(notes) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(notes)-1)
	}
	return m.style(yellow, text)
}

// notesOf are the notes that the commands' tables have about the selected thing.
func (m Model) notesOf() []string {
	r, ok := m.selected()
	if !ok {
		return nil
	}
	one := m.now.Cluster
	switch m.place.page {
	case hostsPage:
		one.Hosts = one.Hosts[r.at : r.at+1]
		return one.HostTable().Notes
	case guestsPage:
		one.Guests, one.Moves = one.Guests[r.at:r.at+1], nil
		return one.GuestTable().Notes
	case jobsPage:
		one.Jobs = one.Jobs[r.at : r.at+1]
		return one.JobTable().Notes
	case movesPage:
		one.Moves = one.Moves[r.at : r.at+1]
		return one.MoveTable().Notes
	}
	return nil
}

// sized is a column as wide as it is drawn.
type sized struct {
	column
	at    int // among the page's
	width int
}

// fitted are the columns that fit: those that are dropped first are left out first, and the last
// one has the rest of the line.
func (m Model) fitted() []sized {
	all := m.place.page.of().columns
	drop := len(all)
	for {
		var out []sized
		total := 2 // the mark of the selected row
		for i, c := range all {
			if c.drop <= drop {
				out = append(out, sized{c, i, c.width})
				total += c.width + gap
			}
		}
		if total-gap <= m.width || drop == 0 {
			m.widen(out, m.width-(total-gap))
			return out
		}
		drop--
	}
}

// widen gives the first column half of the room that is left, up to what names need, and the last
// one the rest.
func (m Model) widen(columns []sized, room int) {
	if room <= 0 || len(columns) == 0 {
		return
	}
	first := &columns[0]
	r := m.rows[m.offset:min(len(m.rows), m.offset+m.layout().rows)]
	need := 0
	for _, row := range r {
		need = max(need, ansi.StringWidthWc(view.Clean(first.text(&m.now, row))))
	}
	if more := min(room, max(0, need-first.width)); more > 0 {
		first.width += more
		room -= more
	}
	if last := &columns[len(columns)-1]; !last.right {
		last.width += room
	}
}

// listLines are the head of the list and the rows that are seen.
func (m Model) listLines(l layout) []string {
	columns := m.fitted()
	o := m.orders[m.place.page]
	var head strings.Builder
	head.WriteString("  ")
	for i, c := range columns {
		title := c.title
		if c.at == o.column {
			arrow := "▲"
			if o.reverse {
				arrow = "▼"
			}
			title = ansi.TruncateWc(title, max(c.width-1, 1), "") + arrow
		}
		m.cell(&head, c, title, i == len(columns)-1)
	}
	lines := []string{m.style(bold, head.String())}
	if l.body < 2 {
		lines = nil
	}
	if len(m.rows) == 0 {
		return append(lines, m.emptyLine())
	}
	for i := m.offset; i < min(len(m.rows), m.offset+l.rows); i++ {
		lines = append(lines, m.rowLine(columns, i))
	}
	return lines
}

// emptyLine says why a list has no rows.
func (m Model) emptyLine() string {
	switch {
	case !m.seen:
		return ""
	case m.filter != "":
		return fmt.Sprintf("nothing here has %q: Esc shows all", m.filter)
	case m.place.of != "":
		return "none: Esc goes back"
	}
	return m.place.page.of().empty
}

// rowLine is one row. The selected one has a mark beside its style, which not every terminal shows.
func (m Model) rowLine(columns []sized, i int) string {
	var b strings.Builder
	chosen := i == m.cursor
	if b.WriteString("  "); chosen {
		b.Reset()
		b.WriteString("> ")
	}
	for k, c := range columns {
		text := view.Clean(c.text(&m.now, m.rows[i]))
		if text == "" {
			text = "-"
		}
		if style := tints[text]; c.state && !chosen && m.color && style != "" {
			var plainCell strings.Builder
			m.cell(&plainCell, c, text, k == len(columns)-1)
			b.WriteString(m.style(style, plainCell.String()))
			continue
		}
		m.cell(&b, c, text, k == len(columns)-1)
	}
	if chosen {
		return m.style(inverse, b.String())
	}
	return b.String()
}

// cell writes a text as wide as its column.
func (m Model) cell(b *strings.Builder, c sized, text string, last bool) {
	n := ansi.StringWidthWc(text)
	if n > c.width {
		text = ansi.TruncateWc(text, c.width, "…")
		n = ansi.StringWidthWc(text)
	}
	pad := strings.Repeat(" ", max(0, c.width-n))
	switch {
	case c.right:
		b.WriteString(pad + text)
	case last:
		b.WriteString(text)
	default:
		b.WriteString(text + pad)
	}
	if !last {
		b.WriteString(strings.Repeat(" ", gap))
	}
}
