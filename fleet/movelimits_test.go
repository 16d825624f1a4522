package fleet

import (
	"reflect"
	"slices"
	"testing"
)

// notFlags are the fields of Limits that no person gives: the controller sets them.
var notFlags = []string{"Lenient", "Rounds", "Preempt", "Slow", "AwaitGang"}

// Every field has a flag or is the controller's own, and every flag a field of its own.
func TestLimitFlagsCoverLimits(t *testing.T) {
	var l Limits
	v := reflect.ValueOf(&l).Elem()
	flagOf := map[string]string{}
	for _, f := range LimitFlags {
		at := reflect.ValueOf(f.Field(&l)).Pointer()
		for i := range v.NumField() {
			if v.Field(i).Addr().Pointer() != at {
				continue
			}
			name := v.Type().Field(i).Name
			if flagOf[name] != "" {
				t.Errorf("--%s and --%s have the field %s", flagOf[name], f.Flag, name)
			}
			flagOf[name] = f.Flag
		}
		if f.Help == "" || f.Refusal == "" || f.Says == "" && len(f.SaysOf) != len(f.Choices) {
			t.Errorf("--%s: the entry lacks words: %+v", f.Flag, f)
		}
	}
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; (flagOf[name] == "") != slices.Contains(notFlags, name) {
			t.Errorf("field %s has the flag %q, and is the controller's own: %t", name, flagOf[name], slices.Contains(notFlags, name))
		}
	}
}

func TestForDrain(t *testing.T) {
	all := Limits{Mode: PostCopy, Downtime: 1, Rounds: 2, BytesPerSecond: 3, Deadline: 4, PageCache: DropCache, Compress: CompressOn, Slow: true}
	if got, want := all.ForDrain(), (Limits{BytesPerSecond: 3, PageCache: DropCache, Compress: CompressOn}); got != want {
		t.Errorf("of %+v a drain keeps to %+v, want %+v", all, got, want)
	}
}
