package roles

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"pagurus/fleet"
)

// addLending defines the flag with the devices that guests may have.
func (f *Agent) addLending(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.Lending, fleet.LendFlag, nil, "PCI addresses of devices that guests may have for themselves, like 0000:03:10.0: the agent takes each from the host's driver when a guest needs it, and gives it back; "+
		"a guest that has a device can do with it what the host could (default: only those that are bound to vfio-pci)")
}

// parseLending reads addresses of devices, and gives them in their long form.
func parseLending(words []string) ([]string, error) {
	out := make([]string, 0, len(words))
	for _, word := range words {
		address, ok := fleet.ParsePCI(word)
		if !ok {
			return nil, fmt.Errorf("%q is not the address of a PCI function: write one like 0000:03:10.0, as `lspci -D` shows them", word)
		}
		if !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	return out, nil
}
