// This file judges flags while they are read, so that the controller is not asked what can be
// known here. Every flag of a program is judged: those that have no judge of their own are not
// empty, not negative, and take times as all others do.
//
// It must not know what flags are for. Its tests try every flag of the command line.

package cli

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/fleet"
)

// judged is a flag's value that is checked before it is taken.
type judged struct {
	pflag.Value
	check func(string) error
}

func (j judged) Set(s string) error {
	if err := j.check(s); err != nil {
		return err
	}
	return j.Value.Set(s)
}

// judgedList is the same of a flag that takes several.
type judgedList struct {
	judged
	pflag.SliceValue
}

// Replace takes the words of a configuration file, each as one that is typed.
func (j judgedList) Replace(words []string) error {
	for _, w := range words {
		if err := j.check(w); err != nil {
			return err
		}
	}
	return j.SliceValue.Replace(words)
}

// Judge has a flag refuse values. check's error completes "--flag: ".
func Judge(flags *pflag.FlagSet, name string, check func(string) error) {
	judge(flags.Lookup(name), check)
}

func judge(f *pflag.Flag, check func(string) error) {
	j := judged{f.Value, check}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		f.Value = judgedList{j, list}
		if f.DefValue == "[]" {
			f.DefValue = "" // or help, which no longer sees a list, shows it
		}
		return
	}
	f.Value = j
}

// OneOf has a flag take one of some words, and completes it to them.
func OneOf(cmd *cobra.Command, name string, words ...string) {
	Judge(cmd.Flags(), name, func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("there is no %q: write %s", s, fleet.Enumerate(words, "or"))
		}
		return nil
	})
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// NoLess has a flag for a number refuse smaller ones.
func NoLess(flags *pflag.FlagSet, name string, least float64) {
	Judge(flags, name, func(s string) error {
		n, err := strconv.ParseFloat(s, 64)
		if err == nil && !(n >= least) { // also refuses NaN
			return fmt.Errorf("%s is too few: write %g or more", s, least)
		}
		return err
	})
}

// IP judges a flag that takes an IP address.
func IP(s string) error {
	if net.ParseIP(s) == nil {
		return fmt.Errorf("%q is not an IP address: write it like 10.0.0.5", s)
	}
	return nil
}

// EmptyMeans annotates the flags whose empty value means something.
const EmptyMeans = "pagurus_empty_means"

// MayBeEmpty says of flags that their empty value means something.
func MayBeEmpty(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = flags.SetAnnotation(name, EmptyMeans, nil)
	}
}

// JudgeFlags judges the flags of a command and of all below it that have no judge yet.
func JudgeFlags(cmd *cobra.Command) {
	JudgeSet(cmd.Flags())
	JudgeSet(cmd.PersistentFlags())
	for _, sub := range cmd.Commands() {
		JudgeFlags(sub)
	}
}

// JudgeSet judges flags that have no judge yet.
func JudgeSet(flags *pflag.FlagSet) { flags.VisitAll(judgeUsually) }

// judgeUsually is for flags without a judge of their own.
func judgeUsually(f *pflag.Flag) {
	switch f.Value.(type) {
	case judged, judgedList, interface{ reads() }:
		return
	}
	_, empty := f.Annotations[EmptyMeans]
	switch f.Value.Type() {
	case "string", "stringSlice", "stringArray":
		if !empty {
			judge(f, notEmpty(f.Value.Type() == "stringSlice"))
		}
	case "int", "int64", "float64":
		judge(f, notNegative)
	case "duration": // pflag's, which knows no days
		f.Value = days{f.Value}
	}
}

func notEmpty(list bool) func(string) error {
	return func(s string) error {
		if strings.TrimSpace(s) == "" {
			return errors.New("its value is empty: give one, or leave the flag out")
		}
		if list && slices.Contains(strings.Split(s, ","), "") {
			return fmt.Errorf("%q has an empty name in it: leave out the comma, or name what is missing", s)
		}
		return nil
	}
}

func notNegative(s string) error {
	if n, err := strconv.ParseFloat(s, 64); err == nil && !(n >= 0) {
		return fmt.Errorf("%s is below 0: write 0 or more", s)
	}
	return nil
}

// days is a time span that is written as in all other flags.
type days struct{ pflag.Value }

func (days) reads() {}

func (d days) Set(s string) error {
	v, err := ParseDuration(s)
	if err == nil {
		err = d.Value.Set(v.String())
	}
	return err
}

// String is as short as ParseDuration takes it.
func (d days) String() string {
	if d.Value == nil {
		return ""
	}
	if v, err := time.ParseDuration(d.Value.String()); err == nil {
		return fleet.ShortDuration(v)
	}
	return d.Value.String()
}
