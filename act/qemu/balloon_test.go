package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"pagurus/fleet"
)

// balloonOf is a guest's balloon that follows by a step at each look.
type balloonOf struct {
	all, has, told, step int64
	least                int64 // the least that it was told to have
	fails                string
	orders               int // to change its size
	refused, unanswered  int // which of them fails; unanswered: it is carried out all the same
}

func (b *balloonOf) ask(_ context.Context, command string, args, out any) error {
	if command == b.fails {
		return errors.New("no")
	}
	if command == "balloon" {
		b.orders++
		if b.orders == b.refused {
			return errors.New("refused")
		}
	}
	var answer string
	switch command {
	case "query-memory-size-summary":
		answer = fmt.Sprintf(`{"base-memory": %d}`, b.all)
	case "query-balloon":
		b.has = max(b.told, b.has-b.step)
		answer = fmt.Sprintf(`{"actual": %d}`, b.has)
	default:
		b.told = args.(map[string]any)["value"].(int64)
		b.least, b.has = min(b.least, b.told), max(b.has, b.told)
		if b.orders == b.unanswered {
			return errors.New("no answer")
		}
		return nil
	}
	return json.Unmarshal([]byte(answer), out)
}

// TestSqueeze: a guest gives what it is asked for, except a reserve, and is told to have all it had at the end,
// however slow it is and whatever fails but that order itself, which is an error.
func TestSqueeze(t *testing.T) {
	const all = 1000
	for name, c := range map[string]struct {
		balloon   balloonOf
		free      int64
		least, at int64 // what it was told to have at the least, and at the end
		wrong     bool
	}{
		"at once":                 {balloonOf{step: 1000}, 500, 500, all, false},
		"in steps":                {balloonOf{step: 10}, 500, 500, all, false},
		"a reserve":               {balloonOf{step: 1000}, 5000, 125, all, false},
		"not at all":              {balloonOf{}, 500, 500, all, false},
		"too slow":                {balloonOf{step: 1}, 800, 200, all, false},
		"nothing wanted":          {balloonOf{step: 1000}, 0, all, all, false},
		"no balloon":              {balloonOf{step: 1000, fails: "query-balloon"}, 500, all, all, true},
		"the order is refused":    {balloonOf{step: 1000, refused: 1}, 500, all, all, true},
		"the order has no answer": {balloonOf{step: 1000, unanswered: 1}, 500, 500, all, true},
		"it gets nothing back":    {balloonOf{step: 1000, refused: 2}, 500, 500, 500, true},
		"nobody says it got all":  {balloonOf{step: 1000, unanswered: 2}, 500, 500, all, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := c.balloon
				b.all, b.has, b.told, b.least = all, all, all, all
				if err := squeeze(t.Context(), b.ask, c.free); (err != nil) != c.wrong {
					t.Error(err)
				}
				if b.least != c.least || b.told != c.at {
					t.Errorf("it was told to have %d at the least and %d at the end", b.least, b.told)
				}
			})
		})
	}
}

// TestSqueezes: memory of a guest that stays where it is is not asked for.
func TestSqueezes(t *testing.T) {
	for name, c := range map[string]struct {
		is   func(*record)
		want bool
	}{
		"usual":         {func(*record) {}, true},
		"shaped":        {func(r *record) { r.Layout = &fleet.Layout{Nodes: make([]fleet.LayoutNode, 2)} }, true},
		"in huge pages": {func(r *record) { r.Layout = &fleet.Layout{Nodes: []fleet.LayoutNode{{}, {PageBytes: 2 << 20}}} }, false},
		"with a device": {func(r *record) { r.Device = "0000:01:00.1" }, false},
	} {
		d, g := &Driver{}, self(t)
		c.is(&g.Record)
		if err := d.guests.Add("g1", g, func() {}); err != nil {
			t.Fatal(err)
		}
		if got := d.Squeezes("g1"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if (&Driver{}).Squeezes("g1") {
		t.Error("one that is not here")
	}
}
