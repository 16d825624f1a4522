package sandbox

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// yards are empty folders in which CRIU assembles a container's mounts. A killed CRIU leaves its
// folder behind.
const yards = "/tmp/.criu.mntns.*"

// yardTime is longer than any CRIU needs its folder.
const yardTime = time.Hour

// SweepYards removes folders that killed CRIUs left in /tmp. Folders that cannot be removed do
// no harm.
func SweepYards() { sweepOld(yards, time.Now().Add(-yardTime)) }

// sweepOld removes the empty folders that match a pattern and are older than a time.
func sweepOld(pattern string, than time.Time) {
	all, _ := filepath.Glob(pattern) // constant patterns are well-formed
	for _, dir := range all {
		if info, err := os.Lstat(dir); err == nil && info.ModTime().Before(than) {
			_ = unix.Rmdir(dir)
		}
	}
}
