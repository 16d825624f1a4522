package cli

import (
	"os/user"
	"slices"
	"strings"
	"testing"

	"pagurus/fleet"
)

// A user's jobs run as one uid and gid, and as root's only if that was typed.
func TestWhoAUserIs(t *testing.T) {
	n := func(is uint32) *uint32 { return &is }
	for _, c := range []struct {
		uid, gid   string // the account's
		give, with *uint32
		want       fleet.User
		words      string // of the refusal; empty: none
	}{
		{"1001", "100", nil, nil, fleet.User{UID: 1001, GID: 100}, ""},
		{"1001", "100", n(7), nil, fleet.User{UID: 7, GID: 100}, ""},
		{"1001", "100", nil, n(7), fleet.User{UID: 1001, GID: 7}, ""},
		{"1001", "100", n(0), nil, fleet.User{UID: 0, GID: 100}, ""},
		{"1001", "100", nil, n(0), fleet.User{UID: 1001, GID: 0}, ""},
		{"0", "0", nil, nil, fleet.User{}, "--uid 0 if that is wanted"},
		{"0", "0", nil, n(0), fleet.User{}, "--uid 0 if that is wanted"},
		{"0", "0", n(7), nil, fleet.User{}, "--gid 0 if that is wanted"},
		{"0", "0", n(0), nil, fleet.User{}, "--gid 0 if that is wanted"},
		{"1001", "0", nil, nil, fleet.User{}, "--gid 0 if that is wanted"},
		{"4294967296", "100", nil, nil, fleet.User{}, "not numbers"},
		{"S-1-5-21", "100", nil, nil, fleet.User{}, "not numbers"},
	} {
		got, err := mapped(user.User{Username: "ada", Uid: c.uid, Gid: c.gid}, c.give, c.with)
		if c.words == "" && (err != nil || got.UID != c.want.UID || got.GID != c.want.GID) || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
	if got, dropped := others([]string{"100", "7", "0", "x", "4294967296"}, 100); !dropped || !slices.Equal(got, []uint32{7}) {
		t.Errorf("other groups: %v, %t", got, dropped)
	}
	if got, dropped := others([]string{"100", "7"}, 100); dropped || !slices.Equal(got, []uint32{7}) {
		t.Errorf("other groups: %v, %t", got, dropped)
	}
	// What both flags say needs no account.
	if got, _, err := account("nobodyhere", n(0), n(0)); err != nil || got.ID != "nobodyhere" || len(got.Groups) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
