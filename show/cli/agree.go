// This file reads an owner's policy from a command line. It knows flags and nothing of
// controllers. Its tests read what users type.

package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"
)

// ownerFlags are the parts of a policy; a part without its flag stays unchanged.
type ownerFlags struct {
	owner, vacate, hours, preset string
	cap                          float64
	idleAfter                    time.Duration
	programs                     []string
}

const (
	asCluster  = "cluster" // the value of --vacate that leaves it to the cluster
	ownPreset  = "own"     // the value of --preset for Pagurus's own
	presetFlag = "preset"
)

// Add defines the flags of a command.
func (f *ownerFlags) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.owner, ownerFlag, "", "yes: this machine has an owner; no: it has none")
	flags.StringVar(&f.vacate, fleet.VacateFlag, "", "what happens to guests when the owner stays: evacuate, suspend, stay, or cluster, which is the default (pagurus policy show says what that is). Guests that cannot leave are suspended; evacuate,stay and cluster,stay let them run on")
	Duration(flags, &f.idleAfter, fleet.IdleAfterFlag, "the owner counts as gone after this time without a sign (default: the preset's, 15m)")
	flags.StringVar(&f.hours, fleet.HoursFlag, "", "when guests may run, by the host's clock, like 19:00-07:00; at other times the owner counts as there (all: always)")
	Share(flags, &f.cap, fleet.CapFlag, "share of the CPUs that all guests may use while the owner is there, like 50% (0: what the owner leaves)")
	flags.StringVar(&f.preset, presetFlag, "", "the thresholds and times for the sensors: condor, boinc, or own")
	flags.StringSliceVar(&f.programs, "exclusive", nil, "while one of these programs runs, the owner counts as there")
	OneOf(cmd, ownerFlag, "yes", "no")
	vacate := []string{string(fleet.Evacuate), string(fleet.Suspend), string(fleet.Stay), asCluster,
		"evacuate,stay", "evacuate,suspend", "cluster,stay", "cluster,suspend"}
	OneOf(cmd, fleet.VacateFlag, vacate...)
	Judge(flags, fleet.VacateFlag, func(s string) error {
		if !slices.Contains(vacate, s) {
			return fmt.Errorf("there is no %q: write evacuate, suspend, stay or cluster; and for guests that cannot leave evacuate,stay or cluster,stay", s)
		}
		return nil
	})
	OneOf(cmd, presetFlag, append([]string{ownPreset}, fleet.Presets...)...)
}

// Amend changes the parts that the flags name, if they make sense.
func (f ownerFlags) Amend(flags *pflag.FlagSet, p *fleet.OwnerPolicy) (changed bool, err error) {
	flags.Visit(func(flag *pflag.Flag) {
		part := true
		var bad error
		switch flag.Name {
		case ownerFlag:
			p.Owned = f.owner == "yes"
		case fleet.VacateFlag:
			first, nowhere, _ := strings.Cut(f.vacate, ",")
			if p.Vacate, p.Nowhere = fleet.Vacate(first), fleet.Vacate(nowhere); first == asCluster {
				p.Vacate = ""
			}
		case fleet.IdleAfterFlag:
			p.IdleAfter = f.idleAfter
		case fleet.HoursFlag:
			p.Hours, bad = parseHours(f.hours)
		case fleet.CapFlag:
			p.Cap = f.cap
		case presetFlag:
			if p.Preset = f.preset; f.preset == ownPreset {
				p.Preset = ""
			}
		case "exclusive":
			p.Exclusive = f.programs
		default:
			part = false // a global flag
		}
		changed = changed || part
		if err == nil {
			err = bad
		}
	})
	if reason := p.Refused(); err == nil && changed && reason != "" {
		err = errors.New(reason)
	}
	return changed, err
}

// parseHours reads a time range of the day.
func parseHours(text string) (h fleet.Hours, err error) {
	if text == "all" {
		return h, nil
	}
	from, to, found := strings.Cut(text, "-")
	clock := func(s string) time.Duration {
		t, e := time.Parse("15:04", strings.TrimSpace(s))
		if e != nil || !found {
			err = fmt.Errorf("--"+fleet.HoursFlag+" takes two times of the day, like 19:00-07:00, or all, not %q", text)
		}
		return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute
	}
	h = fleet.Hours{From: clock(from), To: clock(to)}
	return h, err
}

// completePolicies completes the name of a cluster's policy.
func completePolicies(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range fleet.VacatePolicies {
		names = append(names, string(p.Name))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
