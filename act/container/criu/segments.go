package criu

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// spareFiles is the most files that CRIU has open, besides shared memory, while it
// restores a process.
const spareFiles = 256

// mostSegments is how many pieces of shared memory a container may have: CRIU has a file
// open for each during a restore. The target is assumed to allow as many as this host.
func mostSegments() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max > 1<<30 {
		return 1 << 30
	}
	return int(limit.Max) - spareFiles
}

// segmented returns a sentence if processes have more pieces of shared memory without a
// file than can be restored, otherwise "".
func segmented(pids []int, most int) string {
	all := map[string]bool{}
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			continue
		}
		before := len(all)
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if !strings.Contains(lines.Text(), "/dev/zero") { // the kernel's name for it
				continue
			}
			if words := strings.Fields(lines.Text()); len(words) > 5 && strings.HasSuffix(words[1], "s") {
				all[words[4]] = true
			}
		}
		f.Close()
		if len(all) > most && len(all) > before {
			return fmt.Sprintf("%s has %d pieces of memory that processes share (MAP_SHARED and MAP_ANONYMOUS), and for each CRIU needs an open file at the target, where %d are possible: let it share fewer and larger ones, or raise the agent's limit of open files (LimitNOFILE=)", NameOf(pid), len(all), most)
		}
	}
	return ""
}
