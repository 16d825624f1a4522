package thread

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// CPUs gives those that a thread may run on, by sched_getaffinity(2); 0 is the caller's.
func CPUs(id int) (out fleet.CPUSet, err error) {
	var s unix.CPUSet
	if err := unix.SchedGetaffinity(id, &s); err != nil {
		return nil, fmt.Errorf("ask which CPUs thread %d may run on: %w", id, err)
	}
	for c := range len(s) * strconv.IntSize {
		if s.IsSet(c) {
			out = append(out, c)
		}
	}
	return out, nil
}
