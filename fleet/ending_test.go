package fleet

import "testing"

func TestReadSignal(t *testing.T) {
	for _, name := range SignalNames() {
		for _, text := range []string{name, "SIG" + name} {
			n, err := ReadSignal(text)
			if err != nil || SignalName(n) != name {
				t.Errorf("%s: %d is %s, %v", text, n, SignalName(n), err)
			}
		}
	}
	for text, want := range map[string]int{"usr2": 12, "RTMIN": 34, "RTMIN+2": 36, "SIGRTMAX-1": 63, "15": Terminate} {
		if n, err := ReadSignal(text); n != want || err != nil {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
}

// A host gives up an order before the controller does. Otherwise both would act on one
// guest.
func TestLimitsOfHostAndController(t *testing.T) {
	for _, mode := range []Mode{"", PreCopy, StopAndCopy, PostCopy} {
		for _, v := range []Verb{Start, Stop, Receive, Copy, Switch, Activate, Fetch, Retire, Revert, Discard} {
			if limit, patience := v.Limit(mode, 8<<30), v.Patience(mode, 8<<30); limit <= 0 || patience < limit+answerMargin {
				t.Errorf("%s by %q: the host takes up to %s, the controller waits for %s", v, mode, limit, patience)
			}
		}
		for _, v := range []Verb{Watch, Run, End} {
			if v.Limit(mode, 8<<30) != 0 || v.Patience(mode, 8<<30) != 0 {
				t.Errorf("%s stands, and has a limit", v)
			}
		}
	}
}
