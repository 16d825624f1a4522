package agent

import "pagurus/fleet"

// remains is what is known of a guest that ended by itself, or had too little memory; nil:
// nothing.
func (a *Agent) remains(w *taskRun) *fleet.Remains {
	t, ok := w.driver.(Teller)
	if !ok {
		return nil
	}
	r := t.Ending(w.slot.guest)
	if r == nil || plain(r.Why) == r.Why {
		return r
	}
	said := *r
	said.Why = plain(r.Why)
	return &said
}

// lastWords says why a guest ended by itself and what it said last, as the end of a sentence.
func (a *Agent) lastWords(w *taskRun) string {
	if a.Lease != nil {
		if why := a.Lease.Stopped(w.slot.guest); why != "" {
			return ": " + why
		}
	}
	if r := a.remains(w); r != nil && r.Why != "" {
		return ": " + r.Sentence()
	}
	t, ok := w.driver.(Teller)
	if !ok {
		return ""
	}
	said := t.LastWords(w.slot.guest)
	if said == "" {
		return ""
	}
	return "; its last output: " + said
}
