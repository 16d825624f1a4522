// Command pagurus-probe probes CPUs of the guest that it runs in, as it is asked on
// its standard input. `pagurus bench noise --in` brings it there. It is a program of
// its own because it has to run in any image, so that it is linked to nothing.
package main

import (
	"fmt"
	"os"

	"golang.org/x/term"

	"pagurus/bench/noise"
)

func main() {
	if len(os.Args) != 1 || term.IsTerminal(int(os.Stdin.Fd())) {
		fmt.Fprintln(os.Stderr, "pagurus-probe: `pagurus bench noise --in` calls it")
		os.Exit(2)
	}
	if err := noise.Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-probe:", err)
		os.Exit(1)
	}
}
