package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// OOMKills is how many processes of a contained guest the kernel has killed because the
// guest's memory, or the host's, was used up. It is 0 if that is unknown.
func (g *Groups) OOMKills(guest fleet.GuestID) int {
	at, err := g.of(guest)
	if err != nil {
		return 0
	}
	dir, _, err := g.places(at)
	if err != nil {
		return 0
	}
	name := "memory.events"
	if _, old := g.tree.(legacy); old {
		name = "memory.oom_control"
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	return countOf("oom_kill ", string(text))
}

// Memory is how much memory, in bytes, all contained guests have now, with the files that the kernel keeps for them. It is 0 if that is
// unknown.
func (g *Groups) Memory() (bytes int64) {
	dir, _, err := g.places(g.root)
	if err != nil {
		return 0
	}
	name := "memory.current"
	if _, old := g.tree.(legacy); old {
		name = "memory.usage_in_bytes"
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*", name))
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil { // else it has just ended
			n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			bytes += n
		}
	}
	return bytes
}

// countOf reads the count of an event from a file of either version.
func countOf(event, text string) int {
	for line := range strings.Lines(text) {
		if n, is := strings.CutPrefix(strings.TrimSpace(line), event); is {
			count, _ := strconv.Atoi(n)
			return count
		}
	}
	return 0
}
