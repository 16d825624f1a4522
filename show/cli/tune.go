package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"pagurus/fleet"
)

// JudgeTune has a flag refuse what guests cannot mirror.
func JudgeTune(flags *pflag.FlagSet, name string) {
	Judge(flags, name, func(s string) error {
		if s == "" {
			return errors.New("its value is empty: write hpc, off, or a list of numa, hugepages and pin")
		}
		_, err := ParseTune(s)
		return err
	})
}

// ParseTune reads what guests should mirror of their hosts: "hpc", "off", or some of
// "numa,hugepages,pin".
func ParseTune(text string) (t fleet.Tune, err error) {
	switch text {
	case "", "off":
		return t, nil
	case "hpc":
		return fleet.Tune{NUMA: true, Huge: true, Pin: true}, nil
	}
	for _, word := range strings.Split(text, ",") {
		switch word {
		case "numa":
			t.NUMA = true
		case "hugepages":
			t.Huge = true
		case "pin":
			t.Pin = true
		default:
			return fleet.Tune{}, fmt.Errorf("%q is unknown: write hpc, off, or a list of numa, hugepages and pin", word)
		}
	}
	return t, nil
}
