package quota

import (
	"fmt"

	"pagurus/fleet"
)

// sharing is what users share that stays until somebody removes it.
type sharing struct {
	what      string // in the plural
	then      string // what the user may do
	each, all int64  // bytes; 0: no limit
	cluster   bool   // what root has is the cluster's: only the limit of all holds for it
	accepted  bool   // elsewhere: nothing is left to others once more, which would depend on who comes first
}

// refused says why a user may not add so many bytes, or more, to what users have; empty: the user may.
func refused(s sharing, has map[uint32]int64, uid uint32, more int64) string {
	const unlimited = 1 << 60
	k := Kept{Mine: has[uid], Users: len(has), Free: unlimited}
	for _, bytes := range has {
		k.All += bytes
	}
	bound := Check(fleet.OutputLimits{Each: s.each, All: s.all}, k, max(more, 1))
	if s.cluster && uid == 0 {
		bound = None
		if s.all > 0 && k.All+max(more, 1) > s.all {
			bound = All
		}
	}
	if s.accepted && bound == Share {
		bound = None
	}
	switch bound {
	case None:
		return ""
	case Each:
		return fmt.Sprintf("%s of uid %d have %d MiB, this one has %s, and each user may have %d MiB%s", s.what, uid, has[uid]>>20, atLeast(more), s.each>>20, s.then)
	case Share:
		return fmt.Sprintf("what is left for %s is for users who have less of them than uid %d%s", s.what, uid, s.then)
	}
	return fmt.Sprintf("%s of all users have %d MiB, this one has %s, and they may have %d MiB together%s", s.what, k.All>>20, atLeast(more), s.all>>20, s.then)
}

func atLeast(bytes int64) string {
	if bytes <= 0 {
		return "more"
	}
	return fmt.Sprintf("%d MiB or more", max(bytes>>20, 1))
}
