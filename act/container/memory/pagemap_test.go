package memory

import (
	"bytes"
	"testing"
)

// FuzzPagemap: an image that can be parsed is the same after it was written again.
func FuzzPagemap(f *testing.F) {
	m := pagemapImage{head: []byte{8, 5}, Entries: []pagemapEntry{{flags: flagLazy, others: []byte{8, 0x80, 0x20, 16, 3}}}}
	f.Add(m.Text())
	f.Add(m.Text()[:20])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parsePagemap(text)
		if err != nil {
			return
		}
		again, err := parsePagemap(m.Text())
		if err != nil {
			t.Fatal(err)
		}
		if m.Missing() != again.Missing() || len(again.Entries) != len(m.Entries) || again.PagesID != m.PagesID || !bytes.Equal(again.head, m.head) {
			t.Errorf("%+v became %+v", m, again)
		}
	})
}
