package thread

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// CPUs gives the CPUs that a thread may use, by sched_getaffinity(2); 0 is the calling
// thread.
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
