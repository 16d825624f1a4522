package criu

import (
	_ "embed"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// limitsLibrary answers CRIU where the kernel does not; limits.c is its source.
//
//go:embed limits/limits.so
var limitsLibrary []byte

// limitsShown is CRIU's environment where root lacks CAP_SYS_RESOURCE: CRIU then
// reads other users' limits from where the kernel shows them to all. Without it
// no process of another user than root could be dumped there.
func limitsShown() []string {
	if capable(unix.CAP_SYS_RESOURCE) {
		return nil
	}
	if at := placeLimits(); at != "" {
		return []string{"LD_PRELOAD=" + at}
	}
	return nil // CRIU says what it then cannot do
}

// placeLimits puts the library where CRIU can load it for as long as this process
// lives.
var placeLimits = sync.OnceValue(func() string {
	f, err := Memory("criu's limits")
	if err == nil {
		_, err = f.Write(limitsLibrary)
	}
	if err != nil {
		return ""
	}
	kept = append(kept, f)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
})

// kept are files that are never closed.
var kept []*os.File
