package criu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// Processes are the numbers here of all processes of a container, given its first:
// those of its namespace of process numbers, and their descendants in others. Some
// may have ended meanwhile, and others begun, unless they stand still.
func Processes(pid int) ([]int, error) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil, fmt.Errorf("find the processes of process %d: %w", pid, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("find the processes of process %d: %w", pid, err)
	}
	own := map[int]bool{pid: true}
	children := map[int][]int{}
	for _, e := range entries {
		p, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(p); err == nil {
			children[st.parent] = append(children[st.parent], p)
		}
		if in, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err == nil && in == space {
			own[p] = true
		}
	}
	// In the caller's own namespace only descendants are the container's.
	if self, err := os.Readlink("/proc/self/ns/pid"); err == nil && self == space {
		own = map[int]bool{pid: true}
	}
	all := make([]int, 0, len(own))
	for p := range own {
		all = append(all, p)
	}
	for i := 0; i < len(all); i++ {
		for _, child := range children[all[i]] {
			if !own[child] {
				own[child] = true
				all = append(all, child)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// stat is what the kernel says of a process.
type stat struct {
	state           string // "Z": it has ended
	parent, session int
}

// readStat reads proc(5)'s stat. The name in it is in parentheses and may hold
// anything.
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
