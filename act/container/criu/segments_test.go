package criu

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestManySegmentsAreAnObstacle: each piece of shared memory counts once, however many processes
// have it.
func TestManySegmentsAreAnObstacle(t *testing.T) {
	const count = 40
	for range count {
		b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(b) }()
	}
	own := []int{os.Getpid(), os.Getpid()}
	if says := segmented(own, count+20); says != "" {
		t.Errorf("with room for more: %s", says)
	}
	if says := segmented(own, count-1); !strings.Contains(says, "pieces of memory that processes share") || !strings.Contains(says, "where 39 are possible") {
		t.Errorf("with room for fewer: %q", says)
	}
	if most := mostSegments(); most < 100 {
		t.Errorf("a container may have %d", most)
	}
}
