package fleet

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// AuditRecord is something that somebody asked the controller for, and what came of it.
type AuditRecord struct {
	At      time.Time `json:"at"`
	By      Caller    `json:"by"`
	From    string    `json:"from,omitempty"` // IP address; empty: the controller's own machine, by its socket
	Did     string    `json:"did"`            // a request's verb, or another call
	On      string    `json:"on,omitempty"`   // what it names
	Request RequestID `json:"request,omitempty"`
	Refused string    `json:"refused,omitempty"` // why nothing was done
	Failed  string    `json:"failed,omitempty"`  // what went wrong; it may have been done nevertheless
}

// Result says what came of it.
func (r AuditRecord) Result() string {
	switch {
	case r.Refused != "":
		return "refused: " + r.Refused
	case r.Failed != "":
		return "failed: " + r.Failed
	}
	return "done"
}

// What the audit says of itself, in Did. Nobody asks for either.
const (
	AuditRemoved = "remove old records" // since the audit took too much room; On says which
	AuditMissing = "miss records"       // since there was no room; On says which
)

// Who names the caller.
func (r AuditRecord) Who() string {
	switch {
	case r.Did == AuditRemoved, r.Did == AuditMissing:
		return "the controller"
	case r.By.Host != "":
		return "agent of " + string(r.By.Host)
	case r.By.Guest != "":
		return "a program in " + string(r.By.Guest)
	case r.By.User != "":
		return string(r.By.User)
	case r.By.Admin && r.By.UID == 0 && r.From == "":
		return "root"
	case r.From == "":
		return fmt.Sprintf("uid %d", r.By.UID)
	}
	return "unknown"
}

// objectBytes bounds the text of Object: a command line may be long.
const objectBytes = 200

// Object says what a request is about.
func (r Request) Object(a Answer) string {
	var parts []string
	add := func(s string) {
		if s != "" {
			parts = append(parts, s)
		}
	}
	add(string(cmp.Or(r.Job, a.Job)))
	add(string(r.Guest))
	for _, g := range r.Guests {
		add(string(g))
	}
	add(string(r.Move))
	add(string(r.Host))
	if r.To != "" {
		add("to " + string(r.To))
	}
	if r.ToSite != "" {
		add("to site " + r.ToSite)
	}
	add(r.Signal)
	if r.Count > 0 {
		add(fmt.Sprintf("by %d", r.Count))
	}
	if r.Token != nil && r.Token.ID != "" {
		add("token " + string(r.Token.ID))
	} else if r.Token != nil {
		add(strings.TrimSpace(fmt.Sprintf("token for %s %s", r.Token.Role, r.Token.User)))
	}
	if r.User != nil {
		add("user " + string(r.User.ID))
	}
	if r.Spec != nil {
		add(strings.Join(r.Spec.Args, " "))
	}
	text := strings.ToValidUTF8(strings.Join(parts, " "), "?")
	if len(text) > objectBytes {
		text = strings.ToValidUTF8(text[:objectBytes], "") + "…"
	}
	return text
}
