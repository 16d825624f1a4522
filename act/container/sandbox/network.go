package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// The kernel has one table for the connections of all networks, with a bucket for each 100 KB of
// the machine's memory. Listing those of one network scans the whole table. That takes 3 ms on
// 24 GB, and a move does it several times while the guest is suspended. Since Linux 6.1 a
// network has tables of its own if its parent network is set up so (tcp_child_ehash_entries in
// the kernel's ip-sysctl documentation).
var tables = map[string]string{
	"/proc/sys/net/ipv4/tcp_child_ehash_entries": "8192",
	"/proc/sys/net/ipv4/udp_child_hash_entries":  "512",
}

// nursery is an empty network, set up so that networks made in it have tables of their own. It
// is made when it is first needed, and disappears with this process.
var nursery struct {
	sync.Mutex
	network *os.File
}

// born calls a function that makes a network, in the nursery.
func born(f func() error) error {
	nursery.Lock()
	if nursery.network == nil {
		var err error
		if nursery.network, err = newNursery(); err != nil {
			nursery.Unlock()
			return err
		}
	}
	nursery.Unlock()
	return thread.In(nursery.network, f)
}

func newNursery() (network *os.File, err error) {
	err = thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network: %w", err)
		}
		for path, entries := range tables {
			if err := os.WriteFile(path, []byte(entries), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("have networks have tables of their own: %w", err)
			}
		}
		network, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return network, err
}
