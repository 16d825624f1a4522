package view

import (
	"encoding/json"
	"strings"
	"testing"

	"pagurus/fleet"
)

// A newer controller sends fields and states that are unknown here. They are ignored, or
// printed as they are.
func TestNewerSnapshot(t *testing.T) {
	text, err := json.Marshal(gang(busy()))
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]any
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	news := map[string]string{"hosts": "state", "guests": "state", "jobs": "state", "migrations": "phase"}
	for kind, field := range news {
		for _, object := range raw[kind].(map[string]any) {
			object := object.(map[string]any)
			object[field] = "new-" + kind
			if kind == "jobs" {
				object["result"] = "new-result"
			}
			if facts, has := object["facts"].(map[string]any); has {
				facts["abilities"] = map[string]any{"jail": map[string]any{"live": true}}
				facts["owner"] = map[string]any{"state": "asleep", "present": true}
			}
		}
	}
	sprinkle(raw)
	if text, err = json.Marshal(raw); err != nil {
		t.Fatal(err)
	}
	var s fleet.Snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	c := Read(s)
	said := map[string]string{"hosts": c.HostTable().Text(), "guests": c.GuestTable().Text(), "jobs": c.JobTable().Text(), "migrations": c.MoveTable().Text()}
	for kind := range news {
		if !strings.Contains(said[kind], "new-"+kind) {
			t.Errorf("the state of %s is not printed as it is:\n%s", kind, said[kind])
		}
	}
	if !strings.Contains(said["jobs"], "new-result") || !strings.Contains(said["hosts"], "jail") {
		t.Errorf("a result or a kind is not printed as it is:\n%s\n%s", said["jobs"], said["hosts"])
	}
	for _, m := range c.Moves {
		if shown := m.Show(c.At) + strings.Join(m.Explain(c.At), "\n"); !strings.Contains(shown, "new-migrations") {
			t.Errorf("%s is shown as\n%s", m.ID, shown)
		}
	}
	for _, j := range c.Jobs {
		if line := c.Line(j); !strings.Contains(line, "new-") {
			t.Errorf("%s is shown as %q", j.ID, line)
		}
	}
}

// sprinkle adds an unknown field to every object.
func sprinkle(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, each := range v {
			sprinkle(each)
		}
		if _, is := v["id"]; is {
			v["colour"] = []string{"red"}
		}
	case []any:
		for _, each := range v {
			sprinkle(each)
		}
	}
}
