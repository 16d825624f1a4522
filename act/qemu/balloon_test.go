package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// balloonOf is a guest's balloon that follows by a step at each look.
type balloonOf struct {
	all, has, told, step int64
	least                int64 // the least that it was told to have
	fails                string
}

func (b *balloonOf) ask(_ context.Context, command string, args, out any) error {
	if command == b.fails {
		return errors.New("no")
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
		return nil
	}
	return json.Unmarshal([]byte(answer), out)
}

// TestSqueeze: a guest gives what it is asked for, except a reserve, and has all it had at the end,
// however slow it is and whatever fails.
func TestSqueeze(t *testing.T) {
	for name, c := range map[string]struct {
		free, step, least int64
		fails             string
		wrong             bool
	}{
		"at once":        {free: 500, step: 1000, least: 500},
		"in steps":       {free: 500, step: 10, least: 500},
		"a reserve":      {free: 5000, step: 1000, least: 125},
		"not at all":     {free: 500, step: 0, least: 500},
		"too slow":       {free: 800, step: 1, least: 200},
		"nothing wanted": {free: 0, step: 1000, least: 1000},
		"no balloon":     {free: 500, step: 1000, least: 1000, fails: "query-balloon", wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &balloonOf{all: 1000, has: 1000, told: 1000, least: 1000, step: c.step, fails: c.fails}
				if err := squeeze(t.Context(), b.ask, c.free); (err != nil) != c.wrong {
					t.Error(err)
				}
				if b.least != c.least || b.told != 1000 {
					t.Errorf("it was told to have %d at the least and %d at the end", b.least, b.told)
				}
			})
		})
	}
}
