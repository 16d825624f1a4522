package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"pagurus/act/daemon"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

// report is what a run says: enough to examine and repeat it later.
type report struct {
	Seed   uint64        `json:"seed"`
	Kind   string        `json:"kind"` // of the run
	Commit string        `json:"commit"`
	Began  time.Time     `json:"began"`
	Took   time.Duration `json:"took_ns"`
	Counts tally         `json:"counts"`
	Wrong  string        `json:"wrong,omitempty"`
	Faults []*injection  `json:"faults"`
}

// keepReport writes the report, and adds the run to the record.
func (c *chaos) keepReport(file, record string, wrong error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := report{Seed: c.seed, Kind: c.of, Commit: drive.Commit(), Began: c.began, Took: time.Since(c.began), Counts: c.checker.tally, Faults: c.injections}
	if wrong != nil {
		r.Wrong = wrong.Error()
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("keeping the report: %w", err)
	}
	err = bench.Whole(file, append(text, '\n'))
	if record != "" && len(r.Faults) > 0 {
		err = errors.Join(err, addTo(record, entryOf(r)))
	}
	return err
}

// injected is the number of injected faults.
func (c *chaos) injected() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.injections)
}

// How often progress is shown, on a terminal and in a log.
const (
	showEvery = 500 * time.Millisecond
	logEvery  = 15 * time.Second
)

// progress shows how far the run is.
func (c *chaos) progress(ctx context.Context) {
	every, begin, end := logEvery, "", "\n"
	if term.IsTerminal(int(os.Stderr.Fd())) {
		every, begin, end = showEvery, "\r\x1b[K", ""
		defer fmt.Fprint(os.Stderr, begin)
	}
	for drive.Pause(ctx, every) == nil {
		fmt.Fprint(os.Stderr, begin+c.line()+end)
	}
}

// line is the progress in one line.
func (c *chaos) line() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, last := c.checker.tally, "none yet"
	if n := len(c.injections); n > 0 {
		k := c.injections[n-1]
		last = fmt.Sprintf("%s in %s of %s", k.Kind, k.Phase, k.Migration)
		if c.whole != nil {
			last = strings.TrimSpace(fmt.Sprintf("%s %s", k.Kind, k.Host))
		}
	}
	return fmt.Sprintf("%5.0f s  %d of %d faults (%s)  migrations: %d finished, %d failed, %d cancelled  guests: %d started, %d killed, %d lost, %d doubled  jobs: %d right",
		time.Since(c.began).Seconds(), len(c.injections), c.faults, last, t.Finished, t.Aborted+t.MovesLost, t.Cancelled, t.Started, t.Killed, t.Lost, t.Doubled, t.Jobs)
}

// other stands in the summary for phases without planned faults: the way back, and the end
// of a migration that was over before its fault came.
const other fleet.Phase = "other"

// place gives a fault's column in the summary: by the phase that was hit, not the planned
// one.
func place(hit fleet.Phase) fleet.Phase {
	if slices.Contains(phases, hit) {
		return hit
	}
	return other
}

// tooFew is an error if time ran out before all faults came, unless the user bounded the
// run.
func (c *chaos) tooFew() error {
	if n := c.injected(); n < c.faults && !c.bounded {
		return fmt.Errorf("only %d of %d faults came in %s; give --duration more, or --faults fewer", n, c.faults, c.limit)
	}
	return nil
}

// summary prints all counts.
func (c *chaos) summary(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by := map[kind]map[fleet.Phase]int{}
	sum := map[fleet.Phase]int{}
	for _, k := range c.injections {
		if by[k.Kind] == nil {
			by[k.Kind] = map[fleet.Phase]int{}
		}
		at := place(k.Hit)
		by[k.Kind][at]++
		sum[at]++
	}
	if c.whole != nil {
		c.wholeSummary(w)
		return
	}
	fmt.Fprintf(w, "%-14s %5s", "FAULT", "ALL")
	columns := append(slices.Clone(phases), other)
	for _, p := range columns {
		fmt.Fprintf(w, " %10s", strings.ToUpper(string(p)))
	}
	row := func(name string, counts map[fleet.Phase]int) {
		all := 0
		for _, n := range counts {
			all += n
		}
		fmt.Fprintf(w, "\n%-14s %5d", name, all)
		for _, p := range columns {
			fmt.Fprintf(w, " %10d", counts[p])
		}
	}
	for _, k := range kinds(c.kind) {
		if by[k] != nil {
			row(string(k), by[k])
		}
	}
	row("all", sum)
	t := c.checker.tally
	fmt.Fprintf(w, "\n%d faults in %s, seed %d\n", len(c.injections), time.Since(c.began).Round(time.Second), c.seed)
	fmt.Fprintf(w, "migrations: %d finished, %d failed, %d cancelled, %d lost\n", t.Finished, t.Aborted, t.Cancelled, t.MovesLost)
	fmt.Fprintf(w, "jobs: %d came to their end with right results, %d ended because a guest of theirs was killed, %d never started on unfit hosts, %d wrong\n", t.Jobs, t.JobsDead, t.Refused, t.Wrong)
	fmt.Fprintf(w, "guests: %d started, %d killed rightly, %d lost, %d doubled\n", t.Started, t.Killed, t.Lost, t.Doubled)
}

// How many lines of a log are shown after a finding.
const logTail = 40

// accuse shows a finding with the end of every log, and keeps the logs, since the lab's are
// removed with it.
func (c *chaos) accuse(found wrongness, folder string) {
	fmt.Fprintf(os.Stderr, "\nFOUND, seed %d, after fault %d:\n%s\n", c.seed, c.injected(), found)
	logs, _ := filepath.Glob(filepath.Join(labLogs, "*.log")) // a constant pattern is well-formed
	own, _ := filepath.Glob(guestFolders + "*/guests/*/*.log")
	lights, _ := filepath.Glob(guestFolders + "*/containers/*/*/*.log")
	var errs []error
	for _, file := range slices.Concat(logs, own, lights) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // its guest is gone
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(os.Stderr, "\n== the end of %s\n%s\n", file, strings.Join(lines[max(0, len(lines)-logTail):], "\n"))
		name := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(file, labLogs+"/"), guestFolders), "/", "-")
		errs = append(errs, os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, name), text, 0o644))
	}
	if s, err := json.MarshalIndent(c.last, "", " "); err == nil {
		errs = append(errs, os.WriteFile(filepath.Join(folder, "snapshot.json"), s, 0o644))
	}
	if err := errors.Join(append(errs, c.evidence(folder))...); err != nil {
		fmt.Fprintln(os.Stderr, "keeping the logs:", err)
	}
}

// leftLimit is the kernel's time to remove what has ended.
const leftLimit = 10 * time.Second

// nothingLeft is an error if something of ours exists that was not there before.
func nothingLeft(before map[string]bool) error {
	var left []string
	for end := time.Now().Add(leftLimit); time.Now().Before(end); time.Sleep(scanEvery) {
		left = left[:0]
		for thing := range traces() {
			if !before[thing] {
				left = append(left, thing)
			}
		}
		if len(left) == 0 {
			return nil
		}
	}
	slices.SortFunc(left, cmp.Compare)
	return fmt.Errorf("the lab left behind: %s", strings.Join(left, ", "))
}

// traces lists the parts of a lab: processes, namespaces, links, mounts, control groups and
// files.
func traces() map[string]bool {
	found := map[string]bool{}
	_, _ = daemon.Processes(func(pid int) bool { // an unlisted process is found by the next scan
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		at, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if strings.Contains(string(line), labRun) || strings.HasPrefix(at, labRun) {
			found[fmt.Sprintf("process %d (%s)", pid, strings.ReplaceAll(string(line), "\x00", " "))] = true
		}
		return false
	})
	for _, pattern := range []string{
		"/run/netns/" + namespaceOf + "*", "/sys/class/net/pglab*", labRun, labState, "/sys/fs/cgroup/*/pagurus-lab*", "/sys/fs/cgroup/pagurus-lab*",
		memoryRoot + "/" + squeezeGroup + "*", unifiedRoot + "/" + squeezeGroup + "*",
	} {
		files, _ := filepath.Glob(pattern) // constant patterns are well-formed
		for _, f := range files {
			found[f] = true
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && (strings.HasPrefix(f[1], labState) || strings.HasPrefix(f[1], labRun)) {
			found["mount "+f[1]] = true
		}
	}
	return found
}
