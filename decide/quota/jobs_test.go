package quota

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pagurus/fleet"
)

// texts are such as take more bytes in JSON than they have.
func texts(most int) *rapid.Generator[[]string] {
	one := rapid.Custom(func(t *rapid.T) string {
		part := rapid.SampledFrom([]string{"a", "<", "\x00", "é", "中", "\xff", "\u2028", `"`, `\`, "\n", "🦀"}).Draw(t, "part")
		return strings.Repeat(part, rapid.IntRange(0, most).Draw(t, "times"))
	})
	return rapid.SliceOfN(one, 0, 20)
}

func described(t *rapid.T) fleet.JobSpec {
	all := texts(3000)
	s := fleet.JobSpec{Args: all.Draw(t, "args"), Env: all.Draw(t, "env"), Groups: rapid.SliceOfN(rapid.Uint32(), 0, 50).Draw(t, "groups"), Ranks: 1 << 20, Guests: 1000}
	s.Need = fleet.Resources{CPUs: 1 << 10, MemoryBytes: 1 << 50}
	names := append(all.Draw(t, "names"), "", "", "", "", "")
	s.Dir, s.Export, s.Image, s.Machine, s.Source = names[0], names[1], names[2], names[3], names[4]
	for _, name := range names {
		s.On, s.Files = append(s.On, fleet.HostID(name)), append(s.Files, fleet.Directory{Path: name, Source: name, ReadOnly: true})
		s.Links = append(s.Links, fleet.Link{Path: name, To: name})
	}
	return s
}

// Whatever a job's texts are: it takes no more of the store than is counted, and once it is shortened less than every one may, while
// a list shows the same of it.
func TestJobsTakeWhatIsCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := fleet.Job{ID: "j123456789", Request: fleet.RequestID(strings.Repeat("r", 128)), Spec: described(t), State: fleet.JobEnded, Ended: time.Now(), Digest: "sha256-" + fleet.Digest(strings.Repeat("0", 64))}
		j.Cause = strings.Join(texts(3000).Draw(t, "cause"), " ")
		j.Ending = &fleet.Ending{Cause: j.Cause}
		stored := func(v any) int64 {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return int64(len(text))
		}
		if took, counted := stored(j.Spec), Weight(j.Spec); took > counted {
			t.Fatalf("a job takes %d bytes, counted are %d", took, counted)
		}
		small := Shorten(j)
		if took := stored(small); took > mostKept {
			t.Fatalf("an ended job takes %d bytes", took)
		}
		if again := Shorten(small); !reflect.DeepEqual(small, again) {
			t.Fatalf("it becomes %+v, then %+v", small, again)
		}
		const shown = 44 // characters
		list := func(j fleet.Job) string { return strings.Join(j.Spec.Args, " ") }
		was, is := []rune(list(j)), []rune(list(small))
		for i := range min(shown, len(was)) {
			if string(was[i]) != string(is[i]) {
				t.Fatalf("of %q is shown %q", string(was[:shown]), string(is))
			}
		}
		if small.Spec.UID != j.Spec.UID || small.Request != j.Request || len(j.Spec.Env) > 0 && small.Spec.Env != nil {
			t.Fatalf("kept is %+v", small)
		}
	})
}

// All that jobs may take leaves the store room for hosts, guests and moves.
func TestJobsLeaveRoomInTheStore(t *testing.T) {
	const store = 512 << 20
	if all := liveAll + endedAll*mostKept; all > store*2/3 {
		t.Errorf("jobs may take %d MiB", all>>20)
	}
}

// Ended jobs are cut evenly: no more than all are kept, nobody loses one who has no more than others keep, and one
// more for each would be too many.
func TestEndedJobsAreCutEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOfN(rapid.IntRange(0, 50), 0, 30).Draw(t, "counts")
		each, all := rapid.IntRange(1, 40).Draw(t, "each"), rapid.IntRange(1, 400).Draw(t, "all")
		sum := func(most int) (n int) {
			for _, c := range counts {
				n += min(c, most)
			}
			return n
		}
		most := evenly(counts, each, all)
		if most > each || sum(most) > all || most < each && sum(most+1) <= all {
			t.Errorf("of %v each keeps %d, that is %d", counts, most, sum(most))
		}
	})
}

// Whoever submits what: no user, and not all of them, get beyond the bounds, and who has nothing yet may submit the
// largest job while few users are there.
func TestLiveJobsAreBounded(t *testing.T) {
	large := fleet.JobSpec{Args: []string{strings.Repeat("<", fleet.ProgramBytes/6)}}
	used, all := map[int]int64{}, int64(0)
	submit := func(user int) string {
		why := RefusedJob(Live{Mine: used[user], All: all, Users: len(used)}, large)
		if why == "" {
			used[user] += Weight(large)
			all += Weight(large)
		}
		return why
	}
	for user := range 30 {
		if why := submit(user); why != "" {
			t.Fatalf("user %d cannot submit a first job: %s", user, why)
		}
		for submit(user) == "" {
		}
		if used[user] > liveEach || all > liveAll {
			t.Fatalf("user %d has %d, all have %d", user, used[user], all)
		}
	}
	if why := submit(0); !strings.Contains(why, "wait until some have ended") {
		t.Errorf("it says %q", why)
	}
}
