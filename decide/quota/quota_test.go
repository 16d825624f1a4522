package quota

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

func TestCheck(t *testing.T) {
	const plenty = 1 << 40
	for _, c := range []struct {
		what string
		l    fleet.OutputLimits
		k    Kept
		more int64
		want Bound
	}{
		{"no limits", fleet.OutputLimits{}, Kept{Free: plenty}, 100, None},
		{"the last byte of one's own", fleet.OutputLimits{Each: 100}, Kept{Mine: 90, All: 90, Users: 1, Free: plenty}, 10, None},
		{"one more", fleet.OutputLimits{Each: 100}, Kept{Mine: 90, All: 90, Users: 1, Free: plenty}, 11, Each},
		{"the disk is full", fleet.OutputLimits{Each: 100}, Kept{Mine: 1, All: 90, Users: 2, Free: 0}, 1, Disk},
		{"the disk is over full", fleet.OutputLimits{}, Kept{Mine: 1, All: 90, Users: 2, Free: -50}, 1, Disk},
		{"all have all", fleet.OutputLimits{All: 100}, Kept{Mine: 1, All: 100, Users: 2, Free: plenty}, 1, All},
		{"a lowered limit", fleet.OutputLimits{All: 100}, Kept{Mine: 1, All: 300, Users: 2, Free: plenty}, 1, All},
		{"the disk has less than all may have", fleet.OutputLimits{All: 100}, Kept{Mine: 10, All: 50, Users: 2, Free: 5}, 6, Disk},
		{"alone, up to the last part", fleet.OutputLimits{All: 800}, Kept{Mine: 690, All: 690, Users: 1, Free: plenty}, 10, None},
		{"alone, into the last part", fleet.OutputLimits{All: 800}, Kept{Mine: 700, All: 700, Users: 1, Free: plenty}, 1, Share},
		{"who has less takes of it", fleet.OutputLimits{All: 800}, Kept{Mine: 10, All: 710, Users: 2, Free: plenty}, 50, None},
		{"who comes takes of it", fleet.OutputLimits{All: 800}, Kept{Mine: 0, All: 700, Users: 1, Free: plenty}, 100, None},
		{"and no more than an even share", fleet.OutputLimits{All: 800}, Kept{Mine: 250, All: 750, Users: 2, Free: plenty}, 20, Share},
		{"the same of a disk", fleet.OutputLimits{}, Kept{Mine: 700, All: 700, Users: 1, Free: 100}, 1, Share},
	} {
		if got := Check(c.l, c.k, c.more); got != c.want {
			t.Errorf("%s: %v, should be %v", c.what, got, c.want)
		}
	}
}

// Whoever writes what, and however often: nobody gets beyond a limit, and who has nothing
// yet gets something as long as no more users have come than there was room for.
func TestNobodyIsKeptOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := fleet.OutputLimits{Each: rapid.Int64Range(0, 2000).Draw(t, "each"), All: 8000}
		used := map[int]int64{}
		all := int64(0)
		write := func(user int, more int64) Bound {
			users := 0
			for _, n := range used {
				if n > 0 {
					users++
				}
			}
			b := Check(l, Kept{Mine: used[user], All: all, Users: users, Free: 1 << 30}, more)
			if b == None {
				used[user] += more
				all += more
			}
			return b
		}
		for range rapid.IntRange(1, 200).Draw(t, "writes") {
			write(rapid.IntRange(0, 4).Draw(t, "user"), rapid.Int64Range(1, 300).Draw(t, "bytes"))
		}
		for user, n := range used {
			if l.Each > 0 && n > l.Each {
				t.Fatalf("user %d has %d", user, n)
			}
		}
		if all > l.All {
			t.Fatalf("all have %d", all)
		}
		// At most five users, each with at most an even share of the last part before the next.
		if b := write(99, 1); b != None && all < l.All {
			t.Fatalf("a newcomer waits with %d of %d in use: %v", all, l.All, b)
		}
		// One user alone leaves the last part, however much they write.
		used, all = map[int]int64{}, 0
		for write(0, 100) == None {
		}
		if l.All-all < l.All/lastPart-100 {
			t.Fatalf("one user took %d of %d", all, l.All)
		}
	})
}

func TestMakeRoom(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	jobs := []Ended{{"j3", at(3), 30}, {"j1", at(1), 10}, {"j4", at(4), 0}, {"j2", at(2), 20}}
	const plenty = 1 << 40
	each := fleet.OutputLimits{Each: 100}
	for _, c := range []struct {
		what string
		l    fleet.OutputLimits
		mine int64
		all  int64
		free int64
		need int64
		want []fleet.JobID
	}{
		{"there is room", each, 90, 90, plenty, 10, nil},
		{"the oldest is enough", each, 100, 100, plenty, 10, []fleet.JobID{"j1"}},
		{"two are needed", each, 100, 100, plenty, 11, []fleet.JobID{"j1", "j2"}},
		{"all are needed", each, 100, 100, plenty, 60, []fleet.JobID{"j1", "j2", "j3"}},
		{"all would not do", each, 100, 100, plenty, 61, nil},
		{"a lowered limit", each, 115, 115, plenty, 10, []fleet.JobID{"j1", "j2"}},
		{"the limit of all", fleet.OutputLimits{All: 800}, 60, 800, plenty, 10, []fleet.JobID{"j1"}},
		{"more than an even share", fleet.OutputLimits{All: 800}, 700, 700, plenty, 10, []fleet.JobID{"j1"}},
		{"others fill the disk", each, 60, 60, 0, 10, nil},
	} {
		k := Kept{Mine: c.mine, All: c.all, Users: 1, Free: c.free}
		if got := MakeRoom(c.l, k, c.need, jobs); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, should be %v", c.what, got, c.want)
		}
	}
	if jobs[0].Job != "j3" {
		t.Error("the caller's list was sorted")
	}
}

// Whatever is kept: what goes makes room, without the last of it there would be none, and afterwards nothing more goes.
func TestNoJobGoesInVain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Int64Range(0, 200)
		l := fleet.OutputLimits{Each: bytes.Draw(t, "each"), All: 4 * bytes.Draw(t, "all")}
		var jobs []Ended
		k := Kept{Mine: bytes.Draw(t, "live"), Users: rapid.IntRange(1, 4).Draw(t, "users"), Free: 4*bytes.Draw(t, "free") - 20}
		for i := range rapid.IntRange(0, 6).Draw(t, "jobs") {
			j := Ended{fleet.JobID(fmt.Sprint("j", i)), time.Unix(bytes.Draw(t, "at"), 0), bytes.Draw(t, "bytes")}
			jobs, k.Mine = append(jobs, j), k.Mine+j.Bytes
		}
		k.All = k.Mine + bytes.Draw(t, "others")
		need := 1 + bytes.Draw(t, "need")
		goes := MakeRoom(l, k, need, jobs)
		if len(goes) == 0 {
			return
		}
		var rest []Ended
		for _, j := range jobs {
			if slices.Contains(goes, j.Job) {
				if j.Job == goes[len(goes)-1] {
					continue // last, below
				}
				k.Mine, k.All, k.Free = k.Mine-j.Bytes, k.All-j.Bytes, k.Free+j.Bytes
			} else {
				rest = append(rest, j)
			}
		}
		if Check(l, k, need) == None {
			t.Fatalf("%v go, and the last in vain", goes)
		}
		for _, j := range jobs {
			if j.Job == goes[len(goes)-1] {
				k.Mine, k.All, k.Free = k.Mine-j.Bytes, k.All-j.Bytes, k.Free+j.Bytes
			}
		}
		if got := Check(l, k, need); got != None {
			t.Fatalf("%v go, and there is no room: %v", goes, got)
		}
		if more := MakeRoom(l, k, need, rest); len(more) > 0 {
			t.Fatalf("then %v go", more)
		}
	})
}

// Each bound says what to type.
func TestBoundsSayWhatToDo(t *testing.T) {
	l := fleet.OutputLimits{Each: 5, All: 7}
	for b := Each; b <= Disk; b++ {
		said := b.Says(l, 1000, func(n int64) string { return fmt.Sprint(n, " bytes") })
		if !strings.Contains(said, "`pagurus job rm`") {
			t.Errorf("%d says %q", b, said)
		}
	}
	if None.Says(l, 1, nil) != "" {
		t.Error("none says something")
	}
}
