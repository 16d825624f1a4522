// Command pagurus-shim has the small processes that must start at once. The agent starts it
// for guests: to jail QEMU, to end guests when the host's lease is over, to stop processes for a moment, to serve their memory, or to become a
// container's first process. What needs more than this program does, and stays, is in pagurus-daemon. `pagurus bench noise --in` copies it into a guest, and runs it with the
// argument probe to probe the guest's CPUs. It must run in any image, so it is statically
// linked.
package main

import (
	"fmt"
	"os"
	"slices"

	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/shim"
	"pagurus/act/fence"
	"pagurus/act/host/jail"
	"pagurus/act/host/passage"
	"pagurus/act/share/handle"
	"pagurus/bench/noise"
)

func main() {
	shim.Become(memory.Shims, sandbox.Shims, jail.Shims, passage.Shims, handle.Shims, fence.Shims)
	if !slices.Equal(os.Args[1:], []string{noise.ProbeVerb}) {
		fmt.Fprintln(os.Stderr, "pagurus-shim is a part of `pagurus agent`, which starts it; people do not")
		os.Exit(2)
	}
	if err := noise.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "pagurus-shim %s: %v\n", noise.ProbeVerb, err)
		os.Exit(1)
	}
}
