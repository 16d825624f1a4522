// Command pagurus-daemon has processes that stay for long and need much: encryption, relays between hosts, jobs' ways to the Internet, what
// lets a container run on after a cut, and what keeps a guest of Xen. The agent starts it. What must start at once is in pagurus-shim.
package main

import (
	"fmt"
	"os"

	"pagurus/act/container/shim"
	"pagurus/act/container/thaw"
	"pagurus/act/gateway"
	"pagurus/act/host/jail"
	"pagurus/act/siterelay"
	"pagurus/act/wireguard"
	"pagurus/act/xen"
)

func main() {
	shim.Become(thaw.Shims, jail.Shims, siterelay.Shims, wireguard.Shims, gateway.Shims, xen.Shims)
	fmt.Fprintln(os.Stderr, "pagurus-daemon is a part of `pagurus agent`, which starts it; people do not")
	os.Exit(2)
}
