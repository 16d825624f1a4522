// Command pagurus-shim has the small processes that are to be there at once. The agent
// starts it beside containers: to stop processes for a moment, to hand out their memory,
// or to become the first of a guest. `pagurus bench noise --in` brings it to a guest,
// under the name pagurus-probe, to probe the guest's CPUs. It has to run in any image,
// so it is linked to nothing.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/shim"
	"pagurus/bench/noise"
)

func main() {
	shim.Become(memory.Shims, sandbox.Shims)
	if filepath.Base(os.Args[0]) != noise.ProbeName {
		fmt.Fprintln(os.Stderr, "pagurus-shim is a part of `pagurus agent`, which starts it; people do not")
		os.Exit(2)
	}
	if err := noise.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", noise.ProbeName, err)
		os.Exit(1)
	}
}
