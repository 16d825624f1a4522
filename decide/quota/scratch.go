package quota

import (
	"fmt"
	"maps"

	"pagurus/fleet"
)

// page is the unit in which guests' own files are bounded.
const page = 4096

// Allot says how much each guest's own files may take of a host. What is left of a user's limit is divided among the user's guests, and what is
// left of all among the users who have some: so they stay within both together, whatever they write before it is asked again. The last eighth of
// all is for users who have less than an even share. A guest keeps what it has, also what it brought from another host.
func Allot(l fleet.ScratchLimits, guests []fleet.Scratch) map[fleet.GuestID]int64 {
	used, count, all := map[uint32]int64{}, map[uint32]int64{}, int64(0)
	for _, g := range guests {
		used[g.UID] += g.Used
		count[g.UID]++
		all += g.Used
	}
	out := map[fleet.GuestID]int64{}
	for _, g := range guests {
		more := g.Most
		if l.Each > 0 {
			more = min(more, (l.Each-used[g.UID])/count[g.UID])
		}
		if users := int64(len(used)); l.All > 0 {
			left := l.All - all
			if used[g.UID] >= l.All/(users+1) {
				left -= l.All / lastPart
			}
			more = min(more, left/users/count[g.UID])
		}
		out[g.Guest] = max(page, min(g.Most, (g.Used+max(more, 0))/page*page))
	}
	return out
}

// AllotRest is what guests get when some have kept larger bounds than Allot said, because they wrote meanwhile: what these have beyond it is taken off
// what others of their users get, and what that does not make up for off what others get of all. So others go on. A guest's Bound is the present one.
func AllotRest(l fleet.ScratchLimits, guests []fleet.Scratch, may map[fleet.GuestID]int64) map[fleet.GuestID]int64 {
	beyond, rest, out := map[uint32]int64{}, int64(0), maps.Clone(may)
	for _, g := range guests {
		beyond[g.UID] += max(0, g.Bound-may[g.Guest])
	}
	take := func(g fleet.Scratch, most int64) (took int64) {
		took = min(most, max(0, out[g.Guest]-g.Bound))
		out[g.Guest] -= took
		return took
	}
	for _, g := range guests {
		beyond[g.UID] -= take(g, beyond[g.UID])
	}
	for _, bytes := range beyond {
		rest += bytes
	}
	for _, g := range guests {
		if l.All > 0 {
			rest -= take(g, rest)
		}
	}
	return out
}

// scratchFull is the part of its bound from which on a guest is said to be full.
const scratchFull = 15.0 / 16

// ScratchSays says of guests that have filled what they may take of a host, for people: what it is and what to remove.
func ScratchSays(l fleet.ScratchLimits, guests []fleet.Scratch) (out map[fleet.GuestID]string) {
	may, used := Allot(l, guests), map[uint32]int64{}
	for _, g := range guests {
		used[g.UID] += g.Used
	}
	out = map[fleet.GuestID]string{}
	for _, g := range guests {
		if may[g.Guest] >= g.Most || float64(g.Used) < scratchFull*float64(may[g.Guest]) {
			continue
		}
		limit := fmt.Sprintf("what all users' may take together, %d MiB, is used up but for what others have a right to", l.All>>20)
		if l.Each > 0 && l.Each-used[g.UID] < (l.Each/lastPart) {
			limit = fmt.Sprintf("each user may have %d MiB on a host", l.Each>>20)
		}
		out[g.Guest] = fmt.Sprintf("its own files have %d MiB, those of uid %d on this host %d MiB, and %s: remove files in the guest that are outside the job's directories, such as in /tmp and /dev/shm, or write into the job's directories", g.Used>>20, g.UID, used[g.UID]>>20, limit)
	}
	return out
}

// RefusedFetched says why a host has no room for an image that it has to fetch, beside those that it has fetched and that are in use; empty: it has.
func RefusedFetched(l fleet.ImageLimits, there []fleet.Image, img fleet.Image) string {
	const then = "; they go when no guest runs them: end jobs with other images, or ask the host's administrator for a higher image-quota"
	return refused(sharing{what: "images that this host has fetched", then: then, each: l.Each, all: l.All, cluster: true}, ImagesOf(there).Bytes, img.UID, img.Bytes)
}
