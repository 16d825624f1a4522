package share

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pagurus/act/host/jail"
	"pagurus/act/share/handle"
)

// TestMain also runs as the processes of a server's jail, and as a server that was taken over.
func TestMain(m *testing.M) {
	for _, shims := range []map[string]func([]string) error{jail.Shims, handle.Shims} {
		if become := shims[os.Args[0]]; become != nil {
			fmt.Fprintln(os.Stderr, become(os.Args[1:]))
			os.Exit(1)
		}
	}
	if filepath.Base(os.Args[0]) == takenOver {
		attackFromWithin(os.Args[1:])
		os.Exit(1)
	}
	os.Exit(m.Run())
}
