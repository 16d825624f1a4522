// Command ours lists everything of Pagurus on this machine, one line each: processes,
// namespaces, links, mounts, cgroups and files. scripts/rings runs it before and after
// concurrent tests, which cannot tell alone what is their own. It knows no more than
// testkit.
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
