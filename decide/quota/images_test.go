package quota

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// Who has filled their share is told what to remove, another user goes on, and what root builds counts for all alone.
func TestImagesAreRefused(t *testing.T) {
	const mib = 1 << 20
	image := func(name string, uid uint32, size int64) fleet.Image {
		return fleet.Image{Name: name, UID: uid, Digest: fleet.Digest(fmt.Sprint(size)), Bytes: size * mib}
	}
	there := []fleet.Image{image("openmpi", 0, 500), image("a", 7, 60), image("alias", 7, 60), image("b", 7, 30), image("c", 8, 60)}
	u := ImagesOf(there)
	if u.All != 650*mib || u.Bytes[7] != 90*mib || u.Bytes[0] != 500*mib || len(u.Names[7]) != 3 || u.Bytes[8] != 60*mib {
		t.Fatalf("%+v", u)
	}
	for _, c := range []struct {
		what      string
		each, all int64
		img       fleet.Image
		says      string
	}{
		{"no limit", 0, 0, image("d", 7, 1<<20), ""},
		{"as much as there is", 100, 0, image("d", 7, 10), ""},
		{"more", 100, 0, image("d", 7, 11), "images of uid 7 have 90 MiB, this one has 11 MiB or more, and each user may have 100 MiB; `pagurus image rm`"},
		{"not built yet, with room", 91, 0, image("d", 7, 0), ""},
		{"not built yet, without", 90, 0, image("d", 7, 0), "this one has more, and each user may have 90 MiB"},
		{"another user", 90, 0, image("d", 8, 30), ""},
		{"root", 90, 0, image("d", 0, 1000), ""},
		{"in place of another", 90, 0, image("b", 7, 30), ""},
		{"in place of a smaller one", 90, 0, image("b", 7, 31), "each user may have 90 MiB"},
		{"in place of another user's", 90, 0, image("c", 7, 40), "images of uid 7 have 90 MiB"},
		{"another name", 10, 10, image("again", 7, 30), ""},
		{"no larger than what it replaces, after the limit was lowered", 10, 10, image("a", 7, 60), ""},
		{"all", 0, 700, image("d", 9, 51), "images of all users have 650 MiB, this one has 51 MiB or more, and they may have 700 MiB together"},
		{"all, root's", 0, 700, image("d", 0, 51), "images of all users have 650 MiB"},
		{"root goes on to the end", 0, 700, image("d", 0, 50), ""},
		{"the last part is for others", 0, 660, image("d", 7, 10), ""},
	} {
		got := RefusedImage(fleet.ImageLimits{Each: c.each * mib, All: c.all * mib}, there, c.img)
		if (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q", c.what, got)
		}
		if got != "" && !strings.Contains(got, "`pagurus image rm`") {
			t.Errorf("%s: it does not say what to remove: %q", c.what, got)
		}
	}
	few := []fleet.Image{image("a", 7, 80)}
	if got := RefusedImage(fleet.ImageLimits{All: 100 * mib}, few, image("b", 7, 10)); !strings.Contains(got, "is for users who have less of them than uid 7") {
		t.Errorf("one user takes the last part: %q", got)
	}
	if got := RefusedImage(fleet.ImageLimits{All: 100 * mib}, few, image("b", 8, 10)); got != "" {
		t.Errorf("another user does not get it: %q", got)
	}
}

// Whoever builds what: no user, and not all together, get beyond the limits, and what is removed makes room again. What was accepted has room at
// other controllers, too, in any order.
func TestImagesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := fleet.ImageLimits{Each: rapid.Int64Range(1, 100).Draw(t, "each"), All: rapid.Int64Range(1, 200).Draw(t, "all")}
		there := map[string]fleet.Image{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			img := fleet.Image{Name: rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "name"), UID: rapid.Uint32Range(0, 3).Draw(t, "uid")}
			img.Bytes = rapid.Int64Range(1, 60).Draw(t, "bytes")
			img.Digest = fleet.Digest(fmt.Sprint(img.Bytes))
			var list []fleet.Image
			for _, i := range there {
				list = append(list, i)
			}
			if RefusedImage(l, list, img) != "" {
				delete(there, img.Name) // by its owner, who was told so
				continue
			}
			there[img.Name] = img
			list = nil
			for _, i := range there {
				list = append(list, i)
			}
			u := ImagesOf(list)
			if u.All > l.All {
				t.Fatalf("all have %d of %d", u.All, l.All)
			}
			var copies []fleet.Image
			for _, i := range rapid.Permutation(list).Draw(t, "order") {
				if why := RefusedCopy(l, copies, i); why != "" {
					t.Fatalf("what was accepted is refused at another controller: %s", why)
				}
				copies = append(copies, i)
			}
			for uid, bytes := range u.Bytes {
				if uid != 0 && bytes > l.Each {
					t.Fatalf("uid %d has %d of %d", uid, bytes, l.Each)
				}
			}
		}
	})
}
