package top

import (
	"fmt"
	"strings"

	"pagurus/fleet"
	"pagurus/show/view"
)

// dialog is a question before something is changed.
type dialog struct {
	title   string // what would be done
	request fleet.Request
	number  int // of the prediction that it waits for

	prompting bool // it still asks where to
	input     string
	wrong     string // why the input does not do

	predicting bool     // the prediction has not come yet
	costs      []string // what it will cost
	offset     int
}

// ask begins the question that belongs to a key, about the selected thing.
func (m Model) ask(key string) (Model, Effect) {
	r, ok := m.selected()
	if !ok {
		return m, nil
	}
	switch {
	case m.place.page == hostsPage && key == "d":
		h := m.now.Hosts[r.at]
		if h.State == fleet.HostDraining && !h.ForOwner && !h.ForHealth && !h.ForNotice {
			m.said = fmt.Sprintf("%s is draining already: u has it take guests again", view.Clean(string(h.ID)))
			return m, nil
		}
		return m.predict(&dialog{title: "drain " + string(h.ID), request: fleet.Request{Verb: fleet.Drain, Host: h.ID}})
	case m.place.page == hostsPage && key == "u":
		h := m.now.Hosts[r.at]
		m.dialog = &dialog{title: "undrain " + string(h.ID), request: fleet.Request{Verb: fleet.Undrain, Host: h.ID},
			costs: []string{"It takes guests again. Nothing moves now."}}
	case m.place.page == guestsPage && key == "m":
		g := m.now.Guests[r.at]
		m.dialog = &dialog{title: "move " + string(g.ID), prompting: true, request: fleet.Request{Verb: fleet.Migrate, Guests: []fleet.GuestID{g.ID}}}
	case m.place.page == jobsPage && key == "m":
		j := m.now.Jobs[r.at]
		m.dialog = &dialog{title: "move all guests of " + string(j.ID), prompting: true, request: fleet.Request{Verb: fleet.Migrate, Job: j.ID}}
	case m.place.page == jobsPage && key == "c":
		m.askCancelJob(m.now.Jobs[r.at])
	case m.place.page == movesPage && key == "c":
		m.askCancelMove(m.now.Moves[r.at])
	default:
		m.said = wrongPlace[key]
	}
	return m, nil
}

// wrongPlace says where a key does something.
var wrongPlace = map[string]string{
	"d": "d drains a host: 1 lists them", "u": "u is for hosts: 1 lists them",
	"m": "m moves a guest or a job: 3 and 4 list them", "c": "c cancels a job or a move: 4 and 5 list them",
}

// askCancelJob asks whether to cancel a job. What it costs is what it has computed.
func (m *Model) askCancelJob(j view.Job) {
	if j.State == fleet.JobEnded {
		m.said = view.Clean(string(j.ID)) + " has ended"
		return
	}
	costs := []string{fmt.Sprintf("Its program gets SIGTERM, and is killed after %s.", fleet.ShortDuration(fleet.UsualGrace))}
	switch ran := ranFor(&m.now, j); {
	case ran <= 0:
		costs = append(costs, "It has not run yet.")
	case j.Newest != "":
		costs = append(costs, fmt.Sprintf("It has run for %s with %s. What it did since its checkpoint %s is lost.", m.now.Ran(j.Job), view.Count(j.Spec.Ranks, "rank"), j.Newest))
	default:
		costs = append(costs, fmt.Sprintf("It has run for %s with %s, and has no checkpoint: what it has not written is lost.", m.now.Ran(j.Job), view.Count(j.Spec.Ranks, "rank")))
	}
	m.dialog = &dialog{title: "cancel " + string(j.ID) + ": " + view.Command(j.Spec.Args), request: fleet.Request{Verb: fleet.Cancel, Job: j.ID}, costs: costs}
}

// askCancelMove asks whether to cancel a move. What it costs is what was sent.
func (m *Model) askCancelMove(move view.Move) {
	if move.Over() {
		m.said = view.Clean(string(move.ID)) + " is over"
		return
	}
	var sent int64
	var guests []fleet.GuestID
	for _, p := range move.Parts {
		if !p.Phase.Ended() {
			sent += p.Progress.SentBytes
			guests = append(guests, p.Guest)
		}
	}
	m.dialog = &dialog{title: "cancel move " + string(move.ID), request: fleet.Request{Verb: fleet.CancelMove, Move: move.ID},
		costs: []string{fmt.Sprintf("Where they are stay: %s. What was sent is discarded: %s.", view.List(guests), view.Bytes(sent))}}
}

// predict asks what a request would cost, before it asks whether to make it.
func (m Model) predict(d *dialog) (Model, Effect) {
	m.number++
	d.number, d.predicting, d.prompting = m.number, true, false
	m.dialog = d
	return m, Predict{m.number, d.request}
}

// foresee takes the prediction.
func (d *dialog) foresee(f Foreseen) {
	d.predicting = false
	if f.Err != nil {
		d.costs = []string{"! what it would cost is not known: " + view.Clean(f.Err.Error())}
		return
	}
	v := view.Forecast{Forecast: f.Forecast}
	text := v.Table().Text()
	if basis := v.Basis(); basis != "" {
		text += basis
	}
	d.costs = strings.Split(strings.TrimRight(text, "\n"), "\n")
}

// pressDialog is a key in a question. Only y agrees: Enter may be one too many.
func (m Model) pressDialog(key, text string) (Model, Effect) {
	d := *m.dialog
	m.dialog = &d
	if d.prompting {
		return m.pressPrompt(key, text)
	}
	switch key {
	case "y", "Y":
		if d.predicting {
			return m, nil
		}
		m.dialog, m.said = nil, d.title+": asking the controller…"
		return m, Order{d.title, d.request}
	case "n", "N", "q", "esc":
		m.dialog = nil
	case "up", "k":
		d.offset--
	case "down", "j":
		d.offset++
	case "pgup":
		d.offset -= m.layout().body
	case "pgdown":
		d.offset += m.layout().body
	}
	d.offset = max(0, min(d.offset, len(d.costs)-1))
	return m, nil
}

// pressPrompt edits where to move. Tab completes a host's name.
func (m Model) pressPrompt(key, text string) (Model, Effect) {
	d := m.dialog
	d.wrong = ""
	switch key {
	case "esc":
		m.dialog = nil
	case "tab":
		d.input = m.complete(d.input)
	case "enter":
		to := strings.TrimSpace(d.input)
		if h, ok := m.now.Host(fleet.HostID(to)); ok {
			d.request.To = h.ID
		} else if to != "" && m.isSite(to) {
			d.request.ToSite = to
		} else if to != "" {
			d.wrong = fmt.Sprintf("there is no host or site %q: Tab completes the name of a host", to)
			return m, nil
		}
		if to != "" {
			d.title += " to " + to
		}
		return m.predict(d)
	default:
		d.input = edit(d.input, key, text)
	}
	return m, nil
}

func (m Model) isSite(name string) bool {
	for _, s := range m.now.sites {
		if s.name == name {
			return true
		}
	}
	return false
}

// complete is the longest beginning that all hosts have which begin with the input.
func (m Model) complete(input string) string {
	common, found := "", false
	for _, h := range m.now.Hosts {
		id := string(h.ID)
		switch {
		case !strings.HasPrefix(id, input):
		case !found:
			common, found = id, true
		default:
			for !strings.HasPrefix(id, common) {
				common = common[:len(common)-1]
			}
		}
	}
	if !found {
		return input
	}
	return common
}

// lines are what the question shows.
func (d *dialog) lines(m Model) (title string, body []string, hint string) {
	title = view.Clean(d.title)
	switch {
	case d.prompting:
		body = []string{"Where to? A host or a site, or nothing: then the controller chooses.", "", "to: " + view.Clean(d.input) + "█"}
		if d.wrong != "" {
			body = append(body, "! "+view.Clean(d.wrong))
		}
		return title, body, "Enter says what it will cost   Tab completes   Esc leaves it"
	case d.predicting:
		return title, []string{"predicting what it will cost: guests' memory is watched for some seconds…"}, "Esc leaves it"
	}
	return title, cleanLines(d.costs[min(d.offset, len(d.costs)-1):]), "y does it   n leaves it   ↑↓ scroll"
}
