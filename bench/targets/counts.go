package targets

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// Names, in a run's text, of the counters of TCP in the guests' networks.
const (
	Resent   = "tcp-resent"   // segments sent again, for any reason
	Timeouts = "tcp-timeouts" // retransmission time-outs
	Probes   = "tcp-probes"   // time-outs after which only a last segment was sent again, as a loss probe
)

// counted has the kernel's tables and columns of the counters.
var counted = map[string]struct{ file, table, column string }{
	Resent:   {"snmp", "Tcp:", "RetransSegs"},
	Timeouts: {"netstat", "TcpExt:", "TCPTimeouts"},
	Probes:   {"netstat", "TcpExt:", "TCPLossProbes"},
}

// counts returns the counters so far, summed over the networks of a job's guests.
func counts(job string, guests int) (map[string]uint64, error) {
	all := map[string]uint64{}
	for i := range guests {
		c, err := Find(fmt.Sprintf("%sg%d", job, i))
		if err != nil {
			return nil, err
		}
		for name, at := range counted {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process.PID), "net", at.file))
			if err != nil {
				return nil, fmt.Errorf("counting what TCP of guest %s did: %w", fleet.GuestName(i), err)
			}
			all[name] += column(string(text), at.table, at.column)
		}
	}
	return all, nil
}

// column returns a number from a table with a line of names above a line of numbers, or 0 if it
// is not there.
func column(text, table, name string) uint64 {
	var names []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != table {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		if i := slices.Index(names, name); i > 0 && i < len(words) {
			n, _ := strconv.ParseUint(words[i], 10, 64)
			return n
		}
		names = nil
	}
	return 0
}

// since returns the differences of the counters, a line each.
func since(before, after map[string]uint64) (text string) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		text += fmt.Sprintf("%s %d\n", name, after[name]-before[name])
	}
	return text
}

// Counted parses the text of since. It omits missing counters.
func Counted(text string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 2 {
			continue
		}
		if _, ok := counted[words[0]]; !ok {
			continue
		}
		if n, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			all[words[0]] = float64(n)
		}
	}
	return all
}
