package sandbox

import "testing"

// given is the digest of the filter that containers are given now.
const given = "3900ec4a6625e8c4e97ab39eb072220b3b03c97ff9b04cbb997224e99cba4a28"

// A container with this version's filter is known to the next version.
func TestFilterIsKnown(t *testing.T) {
	p, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if now := digest(asText(p)); now != given {
		t.Errorf("containers are given another filter, %s: put the one before, %s, into earlier in known.go, unless it was never released, and the new one here", now, given)
	}
	if err := Known([][]byte{asText(p)}); err != nil {
		t.Error(err)
	}
	weaker := append(p[:len(p)-1:len(p)-1], answer(answerAllow))
	for name, filters := range map[string][][]byte{
		"one that allows more": {asText(p), asText(weaker)}, "one that allows all": {{6, 0, 0, 0, 0, 0, 0xff, 0x7f}}, "an empty one": {nil},
	} {
		if Known(filters) == nil {
			t.Errorf("%s is known", name)
		}
	}
}
