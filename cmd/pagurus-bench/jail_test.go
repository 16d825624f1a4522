package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestTheJailThatIsMeasuredIsThere: a side of the comparison that is not as it is named is no figure.
func TestTheJailThatIsMeasuredIsThere(t *testing.T) {
	const jailed, free = "Name:\tqemu\nUid:\t2100000000\t2100000000\t2100000000\t2100000000\nSeccomp:\t2\n", "Name:\tqemu\nUid:\t0\t0\t0\t0\nSeccomp:\t0\n"
	all := func(own bool) func(string) (bool, error) { return func(string) (bool, error) { return own, nil } }
	but := func(own bool) func(string) (bool, error) {
		return func(ns string) (bool, error) { return own != (ns == "net"), nil }
	}
	for name, c := range map[string]struct {
		jailed bool
		status string
		own    func(string) (bool, error)
		right  bool
	}{
		"in a jail":            {true, jailed, all(true), true},
		"without":              {false, free, all(false), true},
		"free, named jailed":   {true, free, all(false), false},
		"jailed, named free":   {false, jailed, all(true), false},
		"root in a jail":       {true, strings.Replace(jailed, "2100000000", "0", 1), all(true), false},
		"without a filter":     {true, strings.Replace(jailed, "Seccomp:\t2", "Seccomp:\t0", 1), all(true), false},
		"with a filter":        {false, strings.Replace(free, "Seccomp:\t0", "Seccomp:\t2", 1), all(false), false},
		"on the host's net":    {true, jailed, but(true), false},
		"with a net":           {false, free, but(false), false},
		"it has ended":         {false, "", func(string) (bool, error) { return false, errors.New("no such process") }, false},
		"nothing is known":     {true, "", all(true), false},
		"a status without uid": {true, "Name:\tqemu\nSeccomp:\t2\n", all(true), false},
	} {
		if err := judgeJail(c.jailed, c.status, c.own); (err == nil) != c.right {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestQEMUWithoutItsFilter(t *testing.T) {
	line := strings.Fields("qemu -display none -sandbox on,spawn=deny -m 4")
	if got := withoutSandbox(line); !slices.Equal(got, strings.Fields("qemu -display none -m 4")) || len(line) != 7 {
		t.Errorf("%q of %q", got, line)
	}
	if got := withoutSandbox(line[:3]); !slices.Equal(got, line[:3]) {
		t.Errorf("%q", got)
	}
}
