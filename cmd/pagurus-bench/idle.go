package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
)

// idleWindow is one look at idle agents: the kernel counts their time in hundredths of a
// second, and they use few.
const idleWindow = 20 * time.Second

// idleAgents looks at the agent of a host with one idle guest, and at that of a host with
// none, at the same time.
func (b *experiments) idleAgents(ctx context.Context) error {
	err := b.During(ctx, "", func(string) error {
		if err := drive.Pause(ctx, settling); err != nil {
			return err
		}
		status, err := b.Type(ctx, "lab", "status", "--json")
		if err != nil {
			return err
		}
		with, _, err1 := partOf([]byte(status), "host1")
		without, _, err2 := partOf([]byte(status), "host2")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		return b.InTurn(ctx, nil, bench.Arm{Name: "idle_agent", Measure: func(ctx context.Context) (map[string]float64, error) {
			return lookAt(ctx, map[string]int{"none": without, "one": with})
		}})
	}, "-n", "1", "--mem", "256M", "--image", "openmpi", "--on", "host1", "--", "sleep", "36000")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, says string
		limit      float64
	}{
		{"none_cpu_percent", "an idle agent without guests, % of a CPU", 1}, {"none_mib", "an idle agent without guests, MiB", 40},
		{"one_cpu_percent", "an agent with one idle guest, % of a CPU", 2}, {"one_mib", "an agent with one idle guest, MiB", 40},
	} {
		if err := b.Mean(f.says, "idle_agent_"+f.name, f.limit); err != nil {
			return err
		}
	}
	return nil
}

// lookAt gives what processes take in a window, by names of theirs.
func lookAt(ctx context.Context, pids map[string]int) (map[string]float64, error) {
	used := map[string]time.Duration{}
	for name, pid := range pids {
		now, err := cpuTime(statOf(pid))
		if err != nil {
			return nil, err
		}
		used[name] = now
	}
	begun := time.Now()
	if err := drive.Pause(ctx, idleWindow); err != nil {
		return nil, err
	}
	took, figures := time.Since(begun), map[string]float64{}
	for name, pid := range pids {
		now, err1 := cpuTime(statOf(pid))
		mib, err2 := largest(pid)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		figures[name+"_cpu_percent"] = 100 * (now - used[name]).Seconds() / took.Seconds()
		figures[name+"_mib"] = mib
	}
	return figures, nil
}

// partOf gives the process of one of the lab's daemons, and where it listens, by its status.
func partOf(status []byte, name string) (pid int, address string, err error) {
	var lab labStatus
	if err := json.Unmarshal(status, &lab); err != nil {
		return 0, "", fmt.Errorf("reading the lab's status: %w", err)
	}
	for _, p := range lab.Parts {
		if p.Name == name && p.PID != 0 {
			return p.PID, p.Address, nil
		}
	}
	return 0, "", fmt.Errorf("the lab has no %s that runs: %s", name, status)
}
