package fleet

import (
	"strings"
	"testing"
)

// A user maps to one uid and gid that a kernel takes for what they are.
func TestUserRefused(t *testing.T) {
	good := User{ID: "ada", Role: UserRole, UID: 1001, GID: 100, Groups: []uint32{7, 8}}
	for words, spoil := range map[string]func(*User){
		"needs a name":        func(u *User) { u.ID = "a/b" },
		"not the role":        func(u *User) { u.Role = HostRole },
		"the uid 4294967295":  func(u *User) { u.UID = NoID },
		"the gid 4294967295":  func(u *User) { u.GID = NoID },
		"can have the gid":    func(u *User) { u.Groups = []uint32{7, NoID} },
		"in root's group 0":   func(u *User) { u.Groups = []uint32{7, 0} },
		"is in 1025 groups":   func(u *User) { u.Groups = make([]uint32, MostGroups+1); fill(u.Groups) },
		"from 0 to 429496729": func(u *User) { u.UID = NoID },
	} {
		bad := good
		spoil(&bad)
		if why := bad.Refused(); !strings.Contains(why, words) {
			t.Errorf("%+v: %q, want %q", bad, why, words)
		}
	}
	for _, u := range []User{good, {ID: "root", Role: AdminRole}, {ID: "last", Role: UserRole, UID: NoID - 1, GID: NoID - 1}} {
		if why := u.Refused(); why != "" {
			t.Errorf("%+v: %q", u, why)
		}
	}
}

func fill(groups []uint32) {
	for i := range groups {
		groups[i] = uint32(i + 1)
	}
}
