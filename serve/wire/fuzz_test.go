package wire

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"pagurus/fleet"
)

// again decodes a message, and what it is printed as: both say the same.
func again[M any](t *testing.T, text []byte, check func(M, int64) error) {
	var first, second M
	if json.Unmarshal(text, &first) != nil || check(first, int64(len(text))) != nil {
		return
	}
	printed, err := json.Marshal(first)
	if err != nil {
		return // a time before the year 0: it is never printed
	}
	if err := json.Unmarshal(printed, &second); err != nil {
		t.Fatalf("%s is printed as %s, which cannot be read: %v", text, printed, err)
	}
	if once, err := json.Marshal(second); err != nil || !bytes.Equal(once, printed) {
		t.Errorf("%s is printed as %s and then as %s: %v", text, printed, once, err)
	}
	if err := check(second, int64(len(printed))); err != nil && int64(len(printed)) <= factsBytes {
		t.Errorf("%s is a message, and %s is none: %v", text, printed, err)
	}
}

// FuzzUp: a message of an agent that is taken is the same message when it is printed.
func FuzzUp(f *testing.F) {
	for _, text := range []string{
		`{"hello":{"host":"h1","cluster":"c","facts":{"address":"192.0.2.1","guests":{"j1g0":{"gen":3,"run":"running"}}}}}`,
		`{"facts":{"capacity":{"cpus":1e308,"memory_bytes":-1},"copies":{"m1":{}},"topology":{"nodes":[{"cores":[{"cpus":[0]}]}]}}}`,
		`{"report":{"order":{"verb":"watch","host":"h1","guest":"j1g0","gen":18446744073709551615},"outcome":"done","traces":[{"calls":{"wait":{"count":1}}}]}}`,
		`{"reply":{"id":1,"profile":{}}}`, `{"facts":{},"report":{}}`, `{}`, `null`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { again(t, text, checkUp) })
}

// FuzzDown: the same of a message to an agent.
func FuzzDown(f *testing.F) {
	for _, text := range []string{
		`{"wanted":{"cluster":"c","revision":3,"guests":["j1g0"],"networks":[{"job":"j1","subnet":1,"endpoints":[{"addr":"10.128.1.1"}]}],"wireguard":{"address":"fe80::1","peers":[{}]}}}`,
		`{"task":{"order":{"verb":"start","host":"h1"},"guest":{"id":"j1g0"},"job":{"id":"j1","spec":{"args":["a"]}}}}`,
		`{"query":{"id":1,"trace":"j1g0","signal":{"id":"end"}}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { again(t, text, checkDown) })
}

// FuzzAsked: a request is understood, and then says the same when it is printed, or it is refused. What one of
// the same version does not know is refused.
func FuzzAsked(f *testing.F) {
	for _, text := range []string{`{"verb":"submit","spec":{"args":["x"],"guests":2}}`, `{"verb":"drain","host":"h1","colour":1}`, `{"verb":"migrate","guests":["a"]} {}`, `{"grace_ns":1e3}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var q, back fleet.Request
		if decode(text, &q, true) != nil {
			return
		}
		if err := decode(text, &back, false); err != nil {
			t.Errorf("strictly it is understood, and otherwise not: %v", err)
		}
		printed, err := json.Marshal(q)
		if err != nil {
			return
		}
		if err := decode(printed, &back, true); err != nil {
			t.Errorf("%s is printed as %s, which is not understood: %v", text, printed, err)
		}
	})
}

// FuzzHeard: a version in a header is a number that fits, or is refused.
func FuzzHeard(f *testing.F) {
	for _, text := range []string{"", "0", "1", "-1", "+1", "2147483647", "2147483648", "99999999999999999999", "0x1", " 1", "1e3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		said, err := heardIn(http.Header{protocolHeader: {text}})
		if err == nil && (said.Protocol < 0 || said.Protocol > 1<<31-1) {
			t.Errorf("%q is version %d", text, said.Protocol)
		}
		_ = fleet.Apart(fleet.Speaker{Name: "a", Protocol: said.Protocol}, fleet.Speaker{Name: "b", Protocol: fleet.Protocol()})
	})
}

// FuzzClipped: what is clipped is short and still text.
func FuzzClipped(f *testing.F) {
	f.Add("üüüüü", 5)
	f.Add("\xff\xfe\xfd\xfc", 3)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = 3 + most&0x3ff
		if got := clippedTo(text, most); len(got) > most && len(text) > most {
			t.Errorf("%q is clipped to %d bytes, and may have %d", text, len(got), most)
		}
	})
}
