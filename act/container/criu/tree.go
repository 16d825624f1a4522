package criu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// Processes returns the PIDs on this host of all processes of a container, given its
// first: the processes of its PID namespace, and their descendants in other namespaces.
// If they are not suspended, some may have ended and others begun.
func Processes(pid int) ([]int, error) {
	fail := func(err error) ([]int, error) {
		return nil, fmt.Errorf("find the processes of process %d: %w", pid, err)
	}
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return fail(err)
	}
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return fail(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fail(err)
	}
	all := []int{pid}
	children := map[int][]int{}
	for _, e := range entries {
		p, err := strconv.Atoi(e.Name())
		if err != nil || p == pid {
			continue
		}
		in, err := os.Readlink("/proc/" + e.Name() + "/ns/pid")
		switch {
		case err == nil && in == space && space != ours: // in the caller's own namespace only descendants belong to the container
			all = append(all, p)
			continue
		case err == nil && in == ours && space != ours: // no process returns to an outer namespace
			continue // most processes of a host; finding their parents takes ten times as long
		}
		if st, err := readStat(p); err == nil {
			children[st.parent] = append(children[st.parent], p)
		}
	}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	slices.Sort(all)
	return all, nil
}

// stat holds fields of /proc/PID/stat.
type stat struct {
	state           string // "Z": it has ended
	parent, session int
}

// readStat reads /proc/PID/stat (proc(5)). The name in it is in parentheses and may
// contain anything.
func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 4 {
		return stat{}, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	session, err2 := strconv.Atoi(string(fields[3]))
	return stat{string(fields[0]), parent, session}, errors.Join(err1, err2)
}
