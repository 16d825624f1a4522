package criu

import (
	_ "embed"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// limitsLibrary answers CRIU's questions that the kernel refuses; limits.c is its source.
//
//go:embed limits/limits.so
var limitsLibrary []byte

// limitsShown returns additions to CRIU's environment where root lacks CAP_SYS_RESOURCE.
// With them CRIU reads other users' limits from files that everyone may read. Otherwise
// processes of other users than root could not be dumped.
func limitsShown() []string {
	if capable(unix.CAP_SYS_RESOURCE) {
		return nil
	}
	if at := placeLimits(); at != "" {
		return []string{"LD_PRELOAD=" + at}
	}
	return nil // CRIU then reports which process it cannot dump
}

// placeLimits puts the library where CRIU can load it while this process lives.
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

// kept holds files that are never closed.
var kept []*os.File
