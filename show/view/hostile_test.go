package view

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// poison is what a user, a host's owner or a guest may put into any text: it clears the screen, sets the
// window's title, and pretends to be a line of its own.
const poison = "\x1b[2J\x1b]0;title\x07\r\nFAKE  running\u202e\u009b1A\x00"

// poisoned is a value with that in all its texts.
func poisoned(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		out.SetString(v.String() + poison)
	case reflect.Struct:
		out.Set(v)
		if v.Type() == reflect.TypeFor[time.Time]() {
			return out
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(poisoned(v.Field(i)))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(poisoned(v.Elem()))
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = reflect.Append(out, poisoned(v.Index(i)))
		}
	case reflect.Map:
		if !v.IsNil() {
			out = reflect.MakeMap(v.Type())
			for _, k := range v.MapKeys() {
				out.SetMapIndex(k, poisoned(v.MapIndex(k)))
			}
		}
	default:
		out.Set(v)
	}
	return out
}

func poisonedLike[T any](v T) T { return poisoned(reflect.ValueOf(&v).Elem()).Interface().(T) }

// Whatever others have put into the texts of the cluster, no table and no sentence lets any of it control a terminal
// or begin a line.
func TestNobodyWritesOnTheTerminal(t *testing.T) {
	plain := Read(gang(busy()))
	traces := []fleet.Trace{{Rank: 0, Guest: "j2g0", Calls: map[fleet.CallClass]fleet.Calls{}, Sent: []fleet.Sent{{Rank: 1, Messages: 2, Bytes: 3}},
		Gaps: []fleet.Gap{{Took: time.Second, Why: []fleet.Cause{{What: fleet.RankStopped}}}}}}
	output := fleet.Output{Users: []fleet.UserOutput{{UID: 1, User: "ada", Bytes: 5, Waits: "no room", Jobs: []fleet.JobOutput{{Job: "j1", Bytes: 5, Ended: time.Unix(1, 0)}}}}}
	images := fleet.ImagesKept{Users: []fleet.UserImages{{UID: 1, User: "ada", Names: []string{"mine"}, Bytes: 5}}}
	grown := fleet.GrowthUsed{Each: 4, Users: []fleet.UserGrowth{{UID: 1, User: "ada", Guests: 2}}}
	changes := fleet.ChangesMade{Users: []fleet.UserChanges{{UID: 1, User: "ada", Requests: 2}}}
	audit := []fleet.AuditRecord{{By: fleet.Caller{User: "ada"}, From: "192.0.2.1", Did: "submit", On: "./a.out", Refused: "no"}, {By: fleet.Caller{Host: "host1"}, Failed: "disk"}}
	shown := func(c Cluster) (all []string) {
		for _, table := range []Table{c.HostTable(), c.GuestTable(), c.JobTable(), c.MoveTable(), c.UserTable(), c.TokenTable()} {
			all = append(all, table.Text())
		}
		for _, j := range c.Jobs {
			all = append(all, c.Line(j)+"\n", c.Detail(j, nil).Text(c))
		}
		for _, m := range c.Moves {
			all = append(all, m.Show(c.At))
		}
		return all
	}
	hostile := poisonedLike(plain)
	hostile.Users, hostile.Tokens = poisonedLike([]fleet.User{{ID: "ada"}}), poisonedLike([]fleet.JoinToken{{ID: "t1", User: "ada", Site: "x"}})
	plain.Users, plain.Tokens = []fleet.User{{ID: "ada"}}, []fleet.JoinToken{{ID: "t1", User: "ada", Site: "x"}}
	have := append(shown(hostile), OutputTable(poisonedLike(output)).Text(), ImagesTable(poisonedLike(images)).Text(), GrowthTable(poisonedLike(grown)).Text(), ChangesTable(poisonedLike(changes)).Text(), AuditTable(poisonedLike(audit)).Text(),
		Forecast{poisonedLike(fleet.Forecast{Migrations: []fleet.Foreseen{{Guest: "j1g0", From: "host1", To: "host2"}}})}.Table().Text(),
		CallTable(poisonedLike(traces)).Text(), SentTable(poisonedLike(traces)).Text(), GapTable(poisonedLike(traces)).Text())
	for _, text := range have {
		if i := strings.IndexAny(text, "\x1b\r\x00\x07\u009b\u202e"); i >= 0 {
			t.Errorf("it has %q: %q", text[i:i+1], text)
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "FAKE") {
				t.Errorf("a user wrote a line: %q", text)
			}
		}
	}
	if clean := strings.Join(shown(plain), ""); strings.Contains(clean, "FAKE") || !strings.Contains(strings.Join(have, ""), "FAKE") {
		t.Error("nothing was tried")
	}
}
