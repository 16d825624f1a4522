// Command ours lists what there is of Pagurus on this machine, a line each:
// processes, namespaces, links, mounts, cgroups and files. scripts/rings asks
// before and after tests that run side by side, of which none can tell alone what
// is its own. It knows no more than testkit does.
package main

import (
	"fmt"

	"pagurus/internal/testkit"
)

func main() {
	for _, thing := range testkit.Ours() {
		fmt.Println(thing)
	}
}
