package machine

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"pagurus/fleet"
)

// Counters reads what this machine's kernel counts that comes before a failure. What cannot be counted here is left out, and
// blind says what and why.
func Counters() (all []fleet.Counter, blind []string) { return countersOf(os.DirFS("/")) }

// files are counters that are one number in a file. The part of the path at place names the device.
var files = []struct {
	kind    fleet.SignKind
	pattern string // as in fs.Glob
	place   int
	missing string // what a machine without any cannot see; empty: it is usual
}{
	// Documentation/ABI/testing/sysfs-devices-edac
	{fleet.MemoryFaults, "sys/devices/system/edac/mc/mc*/ue_count", 5, "memory errors are not counted here (no EDAC driver)"},
	{fleet.MemoryErrors, "sys/devices/system/edac/mc/mc*/ce_count", 5, ""},
	// Documentation/admin-guide/ext4.rst: errors that the file system has noted, also before this boot
	{fleet.FileSystemErrors, "sys/fs/ext4/*/errors_count", 3, ""},
	// Documentation/scsi: commands that a disk ended with an error, in hex
	{fleet.DiskErrors, "sys/block/*/device/ioerr_cnt", 2, ""},
	// Documentation/ABI/testing/sysfs-class-net-statistics
	{fleet.LinkErrors, "sys/class/net/*/statistics/rx_errors", 3, ""},
	{fleet.LinkErrors, "sys/class/net/*/statistics/tx_errors", 3, ""},
	{fleet.LinkFlaps, "sys/class/net/*/carrier_down_count", 3, ""},
	{fleet.Throttling, "sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count", 4, ""},
}

func countersOf(root fs.FS) (all []fleet.Counter, blind []string) {
	for _, f := range files {
		found, err := fs.Glob(root, f.pattern)
		if err != nil {
			panic(err) // a pattern above is wrong
		}
		if len(found) == 0 && f.missing != "" {
			blind = append(blind, f.missing)
		}
		for _, name := range found {
			where := strings.Split(name, "/")[f.place]
			if f.kind == fleet.LinkErrors || f.kind == fleet.LinkFlaps {
				if _, err := fs.Stat(root, path.Join("sys/class/net", where, "device")); err != nil {
					continue // guests' ports and bridges, not cards
				}
			}
			if f.kind == fleet.Throttling {
				where = "" // a package's cores count the same heat
			}
			text, err := fs.ReadFile(root, name)
			if err != nil {
				continue // the device has gone, or does not say
			}
			n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 0, 64)
			if err != nil {
				blind = append(blind, fmt.Sprintf("/%s says %.40q, which is no number", name, text))
				continue
			}
			all = add(all, f.kind, where, n)
		}
	}
	if n, ok := machineChecks(root); ok {
		all = add(all, fleet.MachineChecks, "", n)
	}
	if n, ok := swappedIn(root); ok {
		all = add(all, fleet.SwapStorm, "", n)
	}
	return all, blind
}

// add sums what several files count of one thing.
func add(all []fleet.Counter, kind fleet.SignKind, where string, n uint64) []fleet.Counter {
	for i := range all {
		if all[i].Kind == kind && all[i].Where == where {
			all[i].Total += n
			return all
		}
	}
	return append(all, fleet.Counter{Kind: kind, Where: where, Total: n})
}

// machineChecks are the exceptions by which a processor tells of an error that it could not correct: the line MCE of
// /proc/interrupts, proc(5).
func machineChecks(root fs.FS) (sum uint64, known bool) {
	lines(root, "proc/interrupts", func(words []string) {
		if words[0] != "MCE:" {
			return
		}
		known = true
		for _, w := range words[1:] {
			n, err := strconv.ParseUint(w, 10, 64)
			if err != nil {
				return // the words that say what it is
			}
			sum += n
		}
	})
	return sum, known
}

// swappedIn are the pages that were read from swap, proc(5). Those that were written do not make anybody wait.
func swappedIn(root fs.FS) (n uint64, known bool) {
	lines(root, "proc/vmstat", func(words []string) {
		if words[0] == "pswpin" && len(words) == 2 {
			var err error
			n, err = strconv.ParseUint(words[1], 10, 64)
			known = err == nil
		}
	})
	return n, known
}

func lines(root fs.FS, name string, do func(words []string)) {
	f, err := root.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if words := strings.Fields(s.Text()); len(words) > 0 {
			do(words)
		}
	}
}
