package roles

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"pagurus/fleet"
	"pagurus/show/cli"
)

// addLending defines the flag with the devices that guests may have.
func (f *Agent) addLending(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.Lending, fleet.LendFlag, nil, "PCI addresses of devices that guests may have for themselves, like 0000:03:10.0: the agent takes each from the host's driver when a guest needs it, and gives it back; "+
		"a guest that has a device can do with it what the host could (default: only those that are bound to vfio-pci)")
	flags.StringVar(&f.Card, fleet.DeviceNetFlag, "", "the network card, as the name of its interface like enp1s0f0, of which guests with run --"+fleet.DeviceFlag+" "+string(fleet.NetFunction)+" get a virtual function each, and whose VLANs are their jobs' networks; "+
		"all virtual functions that it has are for them (default: none)")
	cli.Judge(flags, fleet.DeviceNetFlag, refusedCard)
	cli.MayBeEmpty(flags, fleet.DeviceNetFlag)
}

// refusedCard says what is wrong with the name of an interface; nil: nothing. A name may have no more bytes, and be no path.
func refusedCard(s string) error {
	const most = 15
	if len(s) > most || s == "." || s == ".." || strings.ContainsAny(s, "/: \t\n") {
		return fmt.Errorf("%q is no name of an interface: write one like enp1s0f0, as `ip link` shows them", s)
	}
	return nil
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
