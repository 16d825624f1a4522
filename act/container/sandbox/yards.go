package sandbox

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// yards are the folders, empty to others, in which CRIU puts a container's mounts
// together. One that is killed leaves its own behind.
const yards = "/tmp/.criu.mntns.*"

// yardTime is longer than any CRIU needs its yard.
const yardTime = time.Hour

// SweepYards removes what killed CRIUs have left in /tmp; what cannot be removed is
// in the way of nothing.
func SweepYards() { sweepOld(yards, time.Now().Add(-yardTime)) }

// sweepOld removes the empty folders that a pattern matches and that are older.
func sweepOld(pattern string, than time.Time) {
	all, _ := filepath.Glob(pattern) // constant patterns are well-formed
	for _, dir := range all {
		if info, err := os.Lstat(dir); err == nil && info.ModTime().Before(than) {
			_ = unix.Rmdir(dir)
		}
	}
}
