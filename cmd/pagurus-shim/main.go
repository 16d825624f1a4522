// Command pagurus-shim is what the agent starts beside containers: to stop processes
// for a moment, to hand out their memory, or to become the first of a guest. It is
// small, so that it is there at once.
package main

import (
	"fmt"
	"os"

	// Each takes over, before main, when the program is called by its name.
	_ "pagurus/act/container/memory"
	_ "pagurus/act/container/sandbox"
)

func main() {
	fmt.Fprintln(os.Stderr, "pagurus-shim is a part of `pagurus agent`, which starts it; people do not")
	os.Exit(2)
}
