package criu

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// spareFiles is what CRIU has open at the most beside pieces of shared memory when it
// makes a process.
const spareFiles = 256

// mostSegments is how many pieces of shared memory a container may have: when it is made,
// CRIU has a file open for each. The target is taken to allow as many as this host.
func mostSegments() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max > 1<<30 {
		return 1 << 30
	}
	return int(limit.Max) - spareFiles
}

// segmented says that processes have more pieces of memory that is shared without a file
// than can be made anew; empty: they have not.
func segmented(pids []int, most int) string {
	all := map[string]bool{}
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			continue
		}
		before := len(all)
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if !strings.Contains(lines.Text(), "/dev/zero") { // what the kernel calls it
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
