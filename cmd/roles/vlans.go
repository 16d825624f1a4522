package roles

import (
	"fmt"

	"pagurus/fleet"
)

// vlansValue is a flag with a range of VLANs.
type vlansValue fleet.VLANs

// String implements pflag.Value.
func (v *vlansValue) String() string {
	if *v == (vlansValue{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", v.First, v.Last)
}

// Set implements pflag.Value.
func (v *vlansValue) Set(s string) error {
	read, err := fleet.ParseVLANs(s)
	if err == nil {
		*v = vlansValue(read)
	}
	return err
}

// Type implements pflag.Value.
func (v *vlansValue) Type() string { return "range" }
