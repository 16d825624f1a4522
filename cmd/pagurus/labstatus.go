package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"pagurus/show/cli"
	"pagurus/show/view"
)

// part is one daemon of a lab in `lab status`.
type part struct {
	Name    string `json:"name"`
	Running bool   `json:"running"`
	Now     string `json:"state,omitempty"` // how a machine is
	PID     int    `json:"pid,omitempty"`
	Address string `json:"address,omitempty"`
	Log     string `json:"log"`
}

// status shows which parts of the lab run.
func status(ctx context.Context, std streams, asJSON bool) error {
	l, err := readLab()
	if err != nil {
		if asJSON && errors.Is(missingRecord(), fs.ErrNotExist) {
			if err := json.NewEncoder(std.out).Encode(map[string]any{"up": false}); err != nil {
				return err
			}
			return cli.Exit{Code: 1}
		}
		return err
	}
	var parts []part
	whole := true
	table := view.Table{Columns: []string{"PART", "STATE", "PID", "ADDRESS", "LOG"}}
	for i, d := range l.daemons() {
		p, ok := d.Running()
		address, name := l.endpoint(), "controller"
		if i > l.Hosts {
			address, name = l.port(labListen, i-l.Hosts+1), controllerName(i-l.Hosts+1)
		} else if i > 0 {
			address, name = l.addr(i).String(), string(l.member(i))
		}
		row := part{Name: name, Running: ok, Address: address, Log: d.LogFile}
		state, pid := "gone", "-"
		if ok {
			row.PID = p.PID
			state, pid = "running", fmt.Sprint(p.PID)
		}
		if l.Machines != nil && i > 0 && i <= l.Hosts {
			state = l.machineState(ctx, i, ok)
			row.Now = state
		}
		whole = whole && ok
		parts = append(parts, row)
		table.Rows = append(table.Rows, []string{name, state, pid, address, d.LogFile})
	}
	if asJSON {
		err = json.NewEncoder(std.out).Encode(map[string]any{"up": whole, "lab": l, "parts": parts})
	} else {
		if !whole {
			table.Notes = []string{"not everything runs: `pagurus lab up` starts the missing parts"}
		}
		_, err = fmt.Fprint(std.out, table.Text())
	}
	if err == nil && !whole {
		return cli.Exit{Code: 1}
	}
	return err
}

func missingRecord() error {
	_, err := os.Stat(labRecord)
	return err
}
