package container_test

import (
	"net/netip"
	"testing"

	"pagurus/act/container"
	"pagurus/serve/agent"
	"pagurus/serve/agent/drivertest"
)

// The only place besides cmd where the driver meets what it satisfies.
var (
	_ agent.Driver = (*container.Driver)(nil)
	_ agent.Linker = (*container.Driver)(nil)
	_ agent.Teller = (*container.Driver)(nil)
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestContract(t *testing.T) {
	drivertest.Run(t, newWorld(t).contract())
}
