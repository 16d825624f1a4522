package quota

import (
	"slices"

	"pagurus/fleet"
)

// An image counts with its size for each user who has a name of it: what is shared stays when the other's goes. What root built is the cluster's,
// and counts for all alone.

// ImageUse is what the images of all users take.
type ImageUse struct {
	Bytes map[uint32]int64 // by user, without zeros; 0 is the cluster
	Names map[uint32][]string
	All   int64
}

// ImagesOf adds up what images take. One that a user has by several names counts once.
func ImagesOf(all []fleet.Image) ImageUse {
	type had struct {
		uid    uint32
		digest fleet.Digest
	}
	u, counted := ImageUse{Bytes: map[uint32]int64{}, Names: map[uint32][]string{}}, map[had]bool{}
	for _, img := range all {
		u.Names[img.UID] = append(u.Names[img.UID], img.Name)
		if is := (had{img.UID, img.Digest}); !counted[is] && img.Bytes > 0 {
			counted[is] = true
			u.Bytes[img.UID] += img.Bytes
			u.All += img.Bytes
		}
	}
	return u
}

// RefusedImage says why there is no room for an image beside those that are there, where it replaces the one of its name; empty: there is.
// An image of 0 bytes is not built yet, and is refused if not even a small one has room.
func RefusedImage(l fleet.ImageLimits, there []fleet.Image, img fleet.Image) string {
	return refusedImage(sharing{each: l.Each, all: l.All}, there, img)
}

// RefusedCopy says why there is no room for an image that another controller has accepted; empty: there is. In whatever order they come, what one
// controller has accepted has room at each, by the same limits, where there is nothing else.
func RefusedCopy(l fleet.ImageLimits, there []fleet.Image, img fleet.Image) string {
	return refusedImage(sharing{each: l.Each, all: l.All, accepted: true}, there, img)
}

func refusedImage(s sharing, there []fleet.Image, img fleet.Image) string {
	before := ImagesOf(there)
	there = slices.DeleteFunc(slices.Clone(there), func(i fleet.Image) bool { return i.Name == img.Name })
	if with := ImagesOf(append(slices.Clone(there), img)); img.Bytes > 0 && with.Bytes[img.UID] <= before.Bytes[img.UID] && with.All <= before.All {
		return "" // also where a limit was lowered
	}
	s.what, s.cluster = "images", true
	s.then = "; `pagurus image rm` removes some, and `pagurus quota` shows how much there is"
	return refused(s, ImagesOf(there).Bytes, img.UID, img.Bytes)
}
