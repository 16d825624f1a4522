package sandbox

import "testing"

// given is the digest of the filter that containers are given now.
const given = "89e208eddf084c468f37855e4dfc6f315db50b46cecf09e95953059ecd437000"

// A container with this version's filter is known to the next version.
func TestFilterIsKnown(t *testing.T) {
	p, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if now := digest(asText(p)); now != given {
		t.Errorf("containers are given another filter, %s: put the one before, %s, into earlier in known.go, unless it was never released, and the new one here", now, given)
	}
	weaker := append(p[:len(p)-1:len(p)-1], answer(answerAllow))
	if err := Known([][][]byte{{asText(p)}, {asText(weaker), asText(p)}}); err != nil {
		t.Error(err)
	}
	for name, threads := range map[string][][][]byte{
		"one that allows more": {{asText(p)}, {asText(weaker)}}, "one that allows all": {{{6, 0, 0, 0, 0, 0, 0xff, 0x7f}}}, "an empty one": {{nil}}, "none": {{}},
	} {
		if Known(threads) == nil {
			t.Errorf("%s is known", name)
		}
	}
}
