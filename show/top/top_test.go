package top

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"pagurus/fleet"
	"pagurus/show/view"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// poison is what a user or a host may put into any text.
const poison = "\x1b[2J\x1b]0;title\x07\r\nFAKE\u202e\u009b1A\x00"

// cluster is three hosts of two sites, two jobs, a move under way and one that is over. All names of people's
// things end with more.
func cluster(more string) view.Cluster {
	s := fleet.NewSnapshot()
	s.At = noon
	for i, id := range []fleet.HostID{"host1", "host2", "host10"} {
		id += fleet.HostID(more)
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: noon, Connected: true, Site: []string{"attic", "attic", "basement"}[i] + more,
			LoadCPUs: float64(3 - i), Capacity: fleet.Resources{CPUs: 4, MemoryBytes: 8 << 30}}}
	}
	h := s.Hosts[fleet.HostID("host2"+more)]
	h.Facts.Owner = &fleet.Owner{State: fleet.OwnerPresent, Present: true, Since: noon.Add(-time.Minute), Why: "keyboard" + more}
	s.Hosts[h.ID] = h
	for i, id := range []fleet.JobID{"j1", "j2"} {
		id += fleet.JobID(more)
		s.Jobs[id] = fleet.Job{ID: id, State: fleet.JobRunning, Submitted: noon.Add(-time.Hour), Started: noon.Add(-time.Duration(i+1) * time.Minute),
			Spec: fleet.JobSpec{Args: []string{"./ring" + more}, Ranks: 4, Guests: 2, Image: "openmpi" + more}}
		for g := range 2 {
			guest := fleet.Guest{ID: fleet.GuestID(fmt.Sprintf("j%dg%d%s", i+1, g, more)), Job: id, Index: g, State: fleet.GuestRunning,
				Home: fleet.HostID([]string{"host1", "host2"}[g] + more), Since: noon, Need: fleet.Resources{MemoryBytes: 1 << 30}}
			s.Guests[guest.ID] = guest
		}
	}
	for i, phase := range []fleet.Phase{fleet.Finished, fleet.Copying} {
		move := fleet.MoveID(fmt.Sprintf("m%d%s", i+1, more))
		m := fleet.Migration{ID: fleet.MigrationID(move) + ".j1g0", Move: move, Guest: fleet.GuestID("j1g0" + more), From: fleet.HostID("host1" + more), To: fleet.HostID("host10" + more), Phase: phase,
			Cause: "why" + more, Entered: []fleet.Entered{{Phase: fleet.Preparing, At: noon.Add(-2 * time.Second)}, {Phase: phase, At: noon.Add(-time.Second)}}}
		if i == 0 {
			m.Cost = fleet.Progress{TotalBytes: 1 << 30, SentBytes: 1 << 28, Downtime: 12 * time.Millisecond}
			m.Stall = &fleet.Stall{Gap: fleet.Gap{Took: 209 * time.Millisecond}}
		}
		s.Migrations[m.ID] = m
		s.Moves[move] = fleet.Move{ID: move, Migrations: []fleet.MigrationID{m.ID}, Why: "asked for" + more, Begun: noon.Add(-2 * time.Second)}
		if i == 0 {
			v := s.Moves[move]
			v.Ended = noon
			s.Moves[move] = v
		}
	}
	return view.Read(s)
}

// shows is a screen with a cluster.
func shows(c view.Cluster) Model {
	m, _ := New(false).Update(tea.WindowSizeMsg{Width: 120, Height: 30})
	m, _ = m.Update(Arrive(c))
	return m
}

var named = map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "backspace": tea.KeyBackspace,
	"pgdown": tea.KeyPgDown, "end": tea.KeyEnd, "home": tea.KeyHome}

// press types keys one after the other: names of keys, or characters. It gives the last effect.
func press(m Model, keys ...string) (Model, Effect) {
	var last Effect
	for _, k := range keys {
		msg := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
		if code, ok := named[k]; ok {
			msg = tea.KeyPressMsg{Code: code}
		} else if letter, ok := strings.CutPrefix(k, "ctrl+"); ok {
			msg = tea.KeyPressMsg{Code: []rune(letter)[0], Mod: tea.ModCtrl}
		}
		var e Effect
		if m, e = m.Update(msg); e != nil {
			last = e
		}
	}
	return m, last
}

// firsts are the first words of the rows of a list on the screen.
func firsts(m Model) (out []string) {
	for _, line := range strings.Split(ansi.Strip(m.View()), "\n")[4:] {
		if words := strings.Fields(strings.TrimPrefix(line, ">")); len(words) > 1 && len(out) < len(m.rows) {
			out = append(out, words[0])
		}
	}
	return out
}

func has(t *testing.T, m Model, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(ansi.Strip(m.View()), w) {
			t.Errorf("the screen has no %q:\n%s", w, ansi.Strip(m.View()))
		}
	}
}

func TestGlanceCountsTheCluster(t *testing.T) {
	has(t, shows(cluster("")), "3 of 3 hosts up", "4 guests running", "2 jobs, 0 waiting", "1 move under way", "CPUs 6.0 of 12 used", "19 GiB of 24 GiB free",
		"owners: 1 there, 0 away", "last stall 209 ms by m1", "present")
	m, _ := press(shows(cluster("")), "down")
	has(t, m, "the owner of host2")
	has(t, New(false), "waiting for the controller")
	m, _ = m.Update(Away{"the controller does not answer"})
	has(t, m, "! the controller does not answer")
	m, _ = m.Update(Arrive(cluster("")))
	if strings.Contains(m.View(), "does not answer") {
		t.Error("it is still said to be away")
	}
}

func TestListsAreSorted(t *testing.T) {
	m := shows(cluster(""))
	for _, c := range []struct {
		keys []string
		want []string
	}{
		{nil, []string{"host1", "host2", "host10"}},
		{[]string{"r"}, []string{"host10", "host2", "host1"}},
		{[]string{"s", "s"}, []string{"host10", "host1", "host2"}},           // by guests
		{[]string{"s", "s", "s", "r"}, []string{"host1", "host2", "host10"}}, // by load, the most first
		{[]string{"S"}, []string{"host1", "host2", "host10"}},                // by site
		{[]string{"S", "r"}, []string{"host10", "host1", "host2"}},
	} {
		got, _ := press(m, c.keys...)
		if order := firsts(got); !slices.Equal(order, c.want) {
			t.Errorf("%q: %q, want %q", c.keys, order, c.want)
		}
	}
	m, _ = press(m, "5")
	if got := firsts(m); !slices.Equal(got, []string{"m2", "m1"}) {
		t.Errorf("moves: %q, want the newest first", got)
	}
}

// The cursor stays on its thing when the list changes, and the list keeps its order.
func TestCursorStaysOnItsThing(t *testing.T) {
	m, _ := press(shows(cluster("")), "s", "s", "s", "r", "down") // by load: host2
	c := cluster("")
	c.Hosts = slices.Clone(c.Hosts)
	c.Hosts[1].Facts.LoadCPUs = 9
	m, _ = m.Update(Arrive(c))
	if m.key() != "host2" || m.cursor != 0 {
		t.Errorf("it is on %q, row %d", m.key(), m.cursor)
	}
	c.Hosts = c.Hosts[:1]
	m, _ = m.Update(Arrive(c))
	if m.key() != "host1" {
		t.Errorf("its host is gone: %q", m.key())
	}
	c.Hosts = nil
	m, _ = m.Update(Arrive(c))
	has(t, m, "no hosts yet")
	for _, key := range []string{"d", "u", "e", "enter", "end", "m"} {
		if m, _ = press(m, key); m.dialog != nil || m.panel != nil {
			t.Errorf("%s does something without a row", key)
		}
	}
}

func TestFilter(t *testing.T) {
	m, _ := press(shows(cluster("")), "/", "B", "a", "s", "e")
	if got := firsts(m); !slices.Equal(got, []string{"host10"}) {
		t.Errorf("%q", got)
	}
	m, effect := press(m, "q", "backspace", "enter") // q is text here
	if effect != nil || m.typing || m.filter != "Base" {
		t.Errorf("%v, %+v", effect, m.filter)
	}
	if m, _ = press(m, "esc"); len(firsts(m)) != 3 {
		t.Error("Esc does not end the filter")
	}
	m, _ = press(m, "/", "x", "y", "enter")
	has(t, m, `nothing here has "xy"`)
}

// A job's guests, a guest's moves, a move; and back to where one was. Sites and hosts likewise.
func TestDrillDown(t *testing.T) {
	m, _ := press(shows(cluster("")), "4", "down", "enter")
	if got := firsts(m); !slices.Equal(got, []string{"j1g0", "j1g1"}) {
		t.Errorf("guests of j1: %q", got)
	}
	has(t, m, "of job j1")
	m, _ = press(m, "enter")
	if got := firsts(m); !slices.Equal(got, []string{"m2", "m1"}) {
		t.Errorf("moves of j1g0: %q", got)
	}
	has(t, m, "host1→host10", "209 ms", "12 ms")
	m, _ = press(m, "down", "enter")
	has(t, m, "move m1", "asked for", "PREPARING", "stall 209 ms")
	m, _ = press(m, "esc", "esc", "esc")
	if m.place.page != jobsPage || m.key() != "j1" || len(m.trail) != 0 {
		t.Errorf("back at %+v, on %q", m.place, m.key())
	}
	m, _ = press(m, "2", "down", "enter")
	if got := firsts(m); !slices.Equal(got, []string{"host10"}) {
		t.Errorf("hosts of basement: %q", got)
	}
	m, _ = press(m, "esc", "up", "enter", "enter")
	if got := firsts(m); !slices.Equal(got, []string{"j1g0", "j2g0"}) {
		t.Errorf("guests of host1: %q", got)
	}
}

func forecast(guest string) fleet.Forecast {
	p := fleet.Prediction{Converges: true, Basis: "past moves", Downtime: fleet.Range[time.Duration]{Value: 40 * time.Millisecond, Low: 10 * time.Millisecond, High: 90 * time.Millisecond}}
	return fleet.Forecast{Migrations: []fleet.Foreseen{{Guest: fleet.GuestID(guest), From: "host1", To: "host2", Prediction: p}}}
}

// A drain says what it costs, and is asked for only after y.
func TestDrainAsksAndSaysItsCost(t *testing.T) {
	m, effect := press(shows(cluster("")), "d")
	p, ok := effect.(Predict)
	if !ok || p.Request.Verb != fleet.Drain || p.Request.Host != "host1" {
		t.Fatalf("%+v", effect)
	}
	has(t, m, "drain host1?", "predicting")
	if _, effect = press(m, "y"); effect != nil {
		t.Error("it drains before its cost is known")
	}
	m, _ = m.Update(Foreseen{Number: p.Number - 1, Forecast: forecast("other")})
	has(t, m, "predicting")
	m, _ = m.Update(Foreseen{Number: p.Number, Forecast: forecast("j1g0")})
	has(t, m, "DOWNTIME", "j1g0", "40 ms (10 ms to 90 ms)", "going by past moves", "y does it")
	for _, key := range []string{"enter", "space", "d", "x", "down"} {
		if after, effect := press(m, key); effect != nil || after.dialog == nil {
			t.Errorf("%q agrees or leaves it", key)
		}
	}
	if after, effect := press(m, "n"); effect != nil || after.dialog != nil {
		t.Error("n does not leave it")
	}
	after, effect := press(m, "y")
	if o, ok := effect.(Order); !ok || o.Request.Verb != fleet.Drain || o.Request.Host != "host1" || after.dialog != nil {
		t.Errorf("%+v", effect)
	}
	after, _ = after.Update(Answered{What: "drain host1", Answer: fleet.Answer{Moves: []fleet.MoveID{"m3"}, Notes: []string{"j2g0 has nowhere to go"}}})
	has(t, after, "drain host1: m3; j2g0 has nowhere to go")
	after, _ = after.Update(Answered{What: "drain host1", Err: errors.New("you may not")})
	has(t, after, "! drain host1: you may not")

	// What cannot be predicted can be done all the same, and the question says so.
	m, effect = press(shows(cluster("")), "d")
	m, _ = m.Update(Foreseen{Number: effect.(Predict).Number, Err: errors.New("no sample")})
	has(t, m, "is not known: no sample")
	if _, effect = press(m, "y"); effect == nil {
		t.Error("y does nothing")
	}
	m, effect = press(shows(cluster("")), "u", "y")
	if o, ok := effect.(Order); !ok || o.Request.Verb != fleet.Undrain {
		t.Errorf("%+v, %+v", effect, m.dialog)
	}
}

func TestMoveAsksWhereTo(t *testing.T) {
	m, _ := press(shows(cluster("")), "3", "m")
	has(t, m, "move j1g0?", "Where to?")
	m, _ = press(m, "x", "enter")
	has(t, m, `no host or site "x"`)
	m, effect := press(m, "backspace", "h", "tab", "2", "enter")
	if p, ok := effect.(Predict); !ok || p.Request.To != "host2" || !slices.Equal(p.Request.Guests, []fleet.GuestID{"j1g0"}) {
		t.Fatalf("%+v", effect)
	}
	has(t, m, "move j1g0 to host2?")
	m, _ = press(shows(cluster("")), "4", "m")
	m, _ = m.Update(tea.PasteMsg{Content: "attic\n"})
	_, effect = press(m, "enter")
	if p, ok := effect.(Predict); !ok || p.Request.ToSite != "attic" || p.Request.Job != "j2" {
		t.Errorf("%+v", effect)
	}
	_, effect = press(shows(cluster("")), "4", "m", "enter")
	if p, ok := effect.(Predict); !ok || p.Request.To != "" || p.Request.ToSite != "" {
		t.Errorf("%+v", effect)
	}
}

func TestCancelSaysWhatIsLost(t *testing.T) {
	m, effect := press(shows(cluster("")), "4", "c")
	if effect != nil {
		t.Error("it is cancelled at once")
	}
	has(t, m, "cancel j2: ./ring?", "2m00s with 4 ranks", "no checkpoint")
	_, effect = press(m, "y")
	if o, ok := effect.(Order); !ok || o.Request.Verb != fleet.Cancel || o.Request.Job != "j2" {
		t.Errorf("%+v", effect)
	}
	m, _ = press(shows(cluster("")), "5", "c")
	has(t, m, "cancel move m2?", "stay: j1g0")
	_, effect = press(m, "y")
	if o, ok := effect.(Order); !ok || o.Request.Verb != fleet.CancelMove || o.Request.Move != "m2" {
		t.Errorf("%+v", effect)
	}
	m, _ = press(shows(cluster("")), "5", "down", "c")
	has(t, m, "m1 is over")
}

// Ctrl-C quits whatever is shown. What is pasted is no command.
func TestCtrlCQuitsAndPasteIsText(t *testing.T) {
	for _, keys := range [][]string{{}, {"?"}, {"d"}, {"/"}, {"3", "m"}, {"e"}} {
		m, _ := press(shows(cluster("")), keys...)
		if _, effect := press(m, "ctrl+c"); effect != (Quit{}) {
			t.Errorf("after %q: %v", keys, effect)
		}
		after, effect := m.Update(tea.PasteMsg{Content: "dyq"})
		if effect != nil || (after.dialog == nil) != (m.dialog == nil) {
			t.Errorf("after %q, what was pasted did %v", keys, effect)
		}
	}
	m, _ := press(shows(cluster("")), "?")
	has(t, m, "drain the host", "Ctrl-C")
	if m, _ = press(m, "esc"); m.panel != nil {
		t.Error("the help stays")
	}
	m, effect := press(m, "e")
	m, _ = m.Update(Explained{Number: effect.(Explain).Number, Lines: []string{"host1 is up"}})
	has(t, m, "explain host1", "host1 is up")
}

// screens are all kinds of things that may be on the screen, with the keys that lead there.
func screens(c view.Cluster) map[string]Model {
	out := map[string]Model{"nothing yet": New(true)}
	start := shows(c)
	start.color = true
	for _, keys := range []string{"1", "2", "3", "4", "5", "?", "d", "3 m", "3 m x enter", "3 enter", "4 c", "5 c", "5 enter", "5 e", "/ h", "/ z z", "s r", "2 enter", "e", "end"} {
		m, effect := press(start, strings.Fields(keys)...)
		if p, ok := effect.(Predict); ok {
			f := forecast("j1g0" + string(c.Hosts[0].ID))
			f.Notes = []string{"note " + string(c.Hosts[0].ID)}
			m, _ = m.Update(Foreseen{Number: p.Number, Forecast: f})
		}
		if e, ok := effect.(Explain); ok {
			m, _ = m.Update(Explained{Number: e.Number, Lines: []string{string(c.Hosts[0].ID)}})
		}
		out[keys] = m
		m, _ = m.Update(Answered{What: "x", Err: errors.New("refused " + string(c.Hosts[0].ID))})
		out[keys+" answered"] = m
	}
	return out
}

// Whatever the terminal's size, no line is too wide and there are not too many.
func TestEverySizeFits(t *testing.T) {
	for _, names := range []string{"", "-a-very-long-name-of-some-thing-or-other", "ホスト名前", "e\u0301e\u0301👩‍🚀"} {
		for keys, m := range screens(cluster(names)) {
			for _, width := range []int{1, 3, 20, 40, 61, 80, 200} {
				for _, height := range []int{1, 2, 4, 5, 7, 11, 24} {
					m, _ := m.Update(tea.WindowSizeMsg{Width: width, Height: height})
					lines := strings.Split(m.View(), "\n")
					if len(lines) > height {
						t.Fatalf("%s, %d×%d: %d lines:\n%s", keys, width, height, len(lines), m.View())
					}
					for _, l := range lines {
						if n := ansi.StringWidthWc(l); n > width {
							t.Fatalf("%s, %d×%d: a line is %d wide: %q", keys, width, height, n, l)
						}
					}
				}
			}
		}
	}
}

// A wide terminal has all columns, a narrow one those that matter most, and both have the name first.
func TestNarrowTerminalsDropColumns(t *testing.T) {
	m := shows(cluster(""))
	wide, _ := m.Update(tea.WindowSizeMsg{Width: 200, Height: 30})
	has(t, wide, "HOST", "STATE", "GUESTS", "OWNER", "SITE", "SEEN")
	narrow, _ := m.Update(tea.WindowSizeMsg{Width: 40, Height: 30})
	has(t, narrow, "HOST", "STATE", "GUESTS", "host10")
	if strings.Contains(narrow.View(), "SITE") || strings.Contains(narrow.View(), "SEEN") {
		t.Error("a narrow terminal has all columns")
	}
	if !slices.Equal(firsts(narrow), []string{"host1", "host2", "host10"}) {
		t.Errorf("%q", firsts(narrow))
	}
}

// Columns are aligned by what a terminal shows, not by bytes or runes.
func TestWideCharactersAreAligned(t *testing.T) {
	m := shows(cluster("ホスト"))
	var at []int
	for _, line := range strings.Split(ansi.Strip(m.View()), "\n") {
		if before, _, found := strings.Cut(line, " up "); found && strings.Contains(line, "ホスト") {
			at = append(at, ansi.StringWidthWc(before))
		}
	}
	if len(at) != 3 || at[0] != at[1] || at[1] != at[2] {
		t.Errorf("the states begin at %v", at)
	}
}

var color = regexp.MustCompile(`\x1b\[[34][0-9]m`)

func TestNoColor(t *testing.T) {
	for keys, m := range screens(cluster("")) {
		colored := m.View()
		m.color = false
		if got := m.View(); color.MatchString(got) {
			t.Errorf("%s: %q", keys, got)
		} else if ansi.Strip(got) != ansi.Strip(colored) {
			t.Errorf("%s: without colour it says something else", keys)
		}
	}
	m := shows(cluster(""))
	m.color = true
	if !color.MatchString(m.View()) {
		t.Error("there is no colour at all")
	}
	if !strings.Contains(ansi.Strip(m.View()), "> host1") {
		t.Error("the selected row is marked by its style alone")
	}
}

// Nothing that others wrote controls the terminal, or begins a line.
func TestNobodyWritesOnTheScreen(t *testing.T) {
	ours := regexp.MustCompile(`\x1b\[(|7|1|31|32|33)m`)
	for keys, m := range screens(cluster(poison)) {
		text := ours.ReplaceAllString(m.View(), "")
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x202e) }); i >= 0 {
			t.Errorf("%s: it has %q:\n%q", keys, text[i:min(len(text), i+5)], text)
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "FAKE") {
				t.Errorf("%s: somebody wrote a line", keys)
			}
		}
	}
}

// many is a large cluster.
func many(hosts int) view.Cluster {
	s := fleet.NewSnapshot()
	s.At = noon
	for i := range hosts {
		id := fleet.HostID(fmt.Sprintf("host%d", i))
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: noon, Connected: true, Site: fmt.Sprintf("site%d", i%20),
			LoadCPUs: float64(i % 7), Capacity: fleet.Resources{CPUs: 8, MemoryBytes: 16 << 30}}}
		for g := range 10 {
			guest := fleet.GuestID(fmt.Sprintf("j%dg%d", i, g))
			s.Guests[guest] = fleet.Guest{ID: guest, Job: fleet.JobID(fmt.Sprintf("j%d", i)), Home: id, State: fleet.GuestRunning}
		}
	}
	return view.Read(s)
}

// Drawing and scrolling cost what is seen, however many hosts there are.
func TestDrawingCostsWhatIsSeen(t *testing.T) {
	cost := func(hosts int) float64 {
		m := shows(many(hosts))
		return testing.AllocsPerRun(5, func() {
			m, _ = press(m, "pgdown")
			_ = m.View()
		})
	}
	if few, lots := cost(100), cost(3000); lots > 1.5*few {
		t.Errorf("%.0f allocations with 100 hosts, %.0f with 3000", few, lots)
	}
}

func BenchmarkScroll10000Hosts(b *testing.B) {
	m := shows(many(10_000))
	m.color = true
	for b.Loop() {
		m, _ = press(m, "down")
		_ = m.View()
	}
}

func BenchmarkArrive10000Hosts(b *testing.B) {
	c := many(10_000)
	m, _ := press(shows(c), "s", "s", "s")
	arrived := Arrive(c)
	for b.Loop() {
		m, _ = m.Update(arrived)
	}
}
