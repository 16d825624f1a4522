package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"pagurus/bench"
	"pagurus/bench/drive"
)

const (
	// settling is how long after the guests' start a cluster is taken for idle.
	settling = 5 * time.Second
	// sizeEvery is between two looks at it.
	sizeEvery = 5 * time.Second
	// sizeGuests is how many guests it has.
	sizeGuests = 4
)

// size looks at what the processes of an idle cluster with four guests take.
func (b *experiments) size(ctx context.Context) error {
	if err := b.sizeOutside(ctx); err != nil {
		return err
	}
	if err := b.sizeInside(ctx); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		limit float64
	}{{"controller_cpu_percent", 2}, {"controller_mib", 150}, {"largest_agent_mib", 40}, {"guest_agent_mib", 12}} {
		if err := b.Mean(fmt.Sprintf("%s, %d hosts and %d guests, idle", f.name, labHosts, sizeGuests), "idle_"+f.name, f.limit); err != nil {
			return err
		}
	}
	return nil
}

// sizeOutside looks at the controller and, of the hosts' agents, always at the
// largest.
func (b *experiments) sizeOutside(ctx context.Context) error {
	return b.During(ctx, "", func(string) error {
		if err := drive.Pause(ctx, settling); err != nil {
			return err
		}
		out, err := b.Type(ctx, "lab", "status", "--json")
		if err != nil {
			return err
		}
		controller, agents, err := daemonsOf([]byte(out))
		if err != nil {
			return err
		}
		return b.InTurn(ctx, nil, bench.Arm{Name: "idle", Measure: func(ctx context.Context) (map[string]float64, error) {
			before, err1 := cpuTime(statOf(controller))
			begun := time.Now()
			if err := drive.Pause(ctx, sizeEvery); err != nil {
				return nil, err
			}
			after, err2 := cpuTime(statOf(controller))
			took := time.Since(begun)
			own, err3 := largest(controller)
			agent, err4 := largest(agents...)
			return map[string]float64{
				"controller_cpu_percent": 100 * (after - before).Seconds() / took.Seconds(), "controller_mib": own, "largest_agent_mib": agent,
			}, errors.Join(err1, err2, err3, err4)
		}})
	}, idle("sleep", "900")...)
}

// idle is a job of the guests that are looked at.
func idle(program ...string) []string {
	n := fmt.Sprint(sizeGuests)
	return append([]string{"-n", n, "--guests", n, "--mem", "256M", "--image", "openmpi", "--"}, program...)
}

// sizeInside looks at the guest agent, the first process of every guest.
func (b *experiments) sizeInside(ctx context.Context) error {
	look := fmt.Sprintf("sleep %.0f; cat /proc/1/status", settling.Seconds())
	out, err := b.Type(ctx, append([]string{"run"}, idle("sh", "-c", look)...)...)
	if err != nil {
		return err
	}
	all := residentMiB(out)
	if len(all) != sizeGuests {
		return fmt.Errorf("%d of %d guests said how large their agent is: %q", len(all), sizeGuests, out)
	}
	for _, mib := range all {
		b.Sample("idle_guest_agent_mib", mib)
	}
	return nil
}

// labStatus is what is used of `pagurus lab status --json`.
type labStatus struct {
	Parts []struct {
		Name    string `json:"name"`
		PID     int    `json:"pid"`
		Address string `json:"address"`
	} `json:"parts"`
}

// daemonsOf gives the processes of the lab's controller and agents, by its status.
func daemonsOf(status []byte) (controller int, agents []int, err error) {
	var lab labStatus
	if err := json.Unmarshal(status, &lab); err != nil {
		return 0, nil, fmt.Errorf("reading the lab's status: %w", err)
	}
	for _, p := range lab.Parts {
		switch {
		case p.PID == 0:
			return 0, nil, fmt.Errorf("%s of the lab does not run", p.Name)
		case p.Name == "controller":
			controller = p.PID
		default:
			agents = append(agents, p.PID)
		}
	}
	if controller == 0 || len(agents) != labHosts {
		return 0, nil, fmt.Errorf("the lab has not all its parts: %s", status)
	}
	return controller, agents, nil
}

// ticksPerSecond is USER_HZ, the unit of proc(5)'s stat.
const ticksPerSecond = 100

// cpuTime gives the processor time that the stat of a process or thread tells.
func cpuTime(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(words[11])
	system, err2 := strconv.Atoi(words[12])
	return time.Duration(user+system) * time.Second / ticksPerSecond, errors.Join(err1, err2)
}

func statOf(pid int) string { return fmt.Sprintf("/proc/%d/stat", pid) }

// largest gives the resident memory of that one of the processes which has
// most, in MiB.
func largest(pids ...int) (float64, error) {
	most := 0.0
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, err
		}
		for _, mib := range residentMiB(string(text)) {
			most = max(most, mib)
		}
	}
	return most, nil
}

// residentMiB gives the resident memory of every process whose text is
// the kernel's status.
func residentMiB(status string) []float64 {
	var all []float64
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64); err == nil {
				all = append(all, kib/1024)
			}
		}
	}
	return all
}
