package state

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// An Overlay behaves as a map with the same changes, with few and with many.
func TestMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"})
		base := rapid.MapOf(name, rapid.Int()).Draw(t, "base")
		l, plain := Overlay[string, int]{base: base}, maps.Clone(base)
		if rapid.Bool().Draw(t, "reused") { // earlier content is invisible
			l = Overlay[string, int]{base: map[string]int{"a": 1}}
			for range rapid.IntRange(0, 100).Draw(t, "before") {
				l.Put(rapid.StringN(1, 2, 2).Draw(t, "other"), 2)
			}
			l.Drop("b")
			l.Reuse(base)
		}
		put, gone := map[string]int{}, map[string]bool{}
		for range rapid.IntRange(0, 60).Draw(t, "changes") {
			k := name.Draw(t, "name")
			if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
				l.Drop(k)
				delete(plain, k)
				delete(put, k)
				gone[k] = true
				continue
			}
			v := rapid.Int().Draw(t, "value")
			l.Put(k, v)
			plain[k], put[k] = v, v
			delete(gone, k)
		}
		for k := 'a'; k <= 'u'; k++ {
			want, there := plain[string(k)]
			if v, found := l.Find(string(k)); found != there || v != want || l.At(string(k)) != want {
				t.Fatalf("%c is %d, %v, should be %d, %v", k, v, found, want, there)
			}
		}
		values, names := l.Changed()
		var want []int
		for _, k := range slices.Sorted(maps.Keys(put)) {
			want = append(want, put[k])
		}
		if !slices.Equal(values, want) || !slices.Equal(names, slices.Sorted(maps.Keys(gone))) {
			t.Fatalf("changed: %v and without %v, should be %v and %v", values, names, want, gone)
		}
	})
}
