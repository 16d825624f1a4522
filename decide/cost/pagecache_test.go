package cost

import (
	"testing"

	"pagurus/fleet"
)

func TestDrops(t *testing.T) {
	warm := fleet.Cache{UsedBytes: 400 * mib, FreeBytes: 100 * mib, CleanBytes: 200 * mib, HotBytes: 20 * mib, Empties: true}
	with := func(change func(*fleet.Cache)) fleet.Cache {
		c := warm
		change(&c)
		return c
	}
	for _, c := range []struct {
		what  string
		l     fleet.Limits
		cache fleet.Cache
		want  bool
	}{
		{"much, read once", fleet.Limits{}, warm, true},
		{"told to send it", fleet.Limits{PageCache: fleet.SendCache}, warm, false},
		{"little", fleet.Limits{}, with(func(c *fleet.Cache) { c.CleanBytes, c.HotBytes = 10*mib, 0 }), false},
		{"little, told to drop it", fleet.Limits{PageCache: fleet.DropCache}, with(func(c *fleet.Cache) { c.CleanBytes = 1 }), true},
		{"little beside what is in use", fleet.Limits{}, with(func(c *fleet.Cache) { c.UsedBytes = 16 << 30 }), false},
		{"read again and again", fleet.Limits{}, with(func(c *fleet.Cache) { c.HotBytes = 150 * mib }), false},
		{"it would be sent as free memory", fleet.Limits{}, with(func(c *fleet.Cache) { c.Empties = false }), false},
		{"by stop-and-copy", fleet.Limits{Mode: fleet.StopAndCopy}, warm, true},
		{"by post-copy", fleet.Limits{Mode: fleet.PostCopy}, warm, true},
	} {
		if got := Drops(c.l, c.cache); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}

// TestWhatIsNotSentIsNotPredicted: free memory, and dropped page cache.
func TestWhatIsNotSentIsNotPredicted(t *testing.T) {
	p := steady(500, 0, 0)
	p.FilledBytes = 480 * mib
	sent := func(l fleet.Limits) int64 { return plain().Predict(p, Link{Limits: l}).Bytes.Value >> 20 }
	if got := sent(fleet.Limits{}); got != 480 {
		t.Errorf("of a guest that says nothing %d MiB", got)
	}
	p.Cache = &fleet.Cache{UsedBytes: 400 * mib, FreeBytes: 100 * mib, CleanBytes: 250 * mib, Empties: true}
	for l, want := range map[fleet.Limits]int64{
		{}:                            150,
		{PageCache: fleet.SendCache}:  480,
		{Mode: fleet.StopAndCopy}:     150,
		{Mode: fleet.PostCopy}:        150,
		{Compress: fleet.CompressOff}: 150,
		{Compress: fleet.CompressOn}:  75,
	} {
		if got := sent(l); got != want {
			t.Errorf("%+v: %d MiB, want %d", l, got, want)
		}
	}
	p.Cache.Empties = false
	if got := sent(fleet.Limits{PageCache: fleet.DropCache}); got != 480 {
		t.Errorf("where free memory is not emptied %d MiB", got)
	}
	p.Cache = &fleet.Cache{FreeBytes: 900 * mib, Empties: true}
	if got := sent(fleet.Limits{}); got != 0 {
		t.Errorf("of a guest that is all free %d MiB", got)
	}
}

func TestPacks(t *testing.T) {
	for _, c := range []struct {
		what string
		m    Model
		l    Link
		want bool
	}{
		{"nothing known of the link", Model{}, Link{}, false},
		{"a fast link", Model{bandwidth: 400 * mib}, Link{}, false},
		{"a slow link", Model{bandwidth: 11 * mib}, Link{}, true},
		{"a fast link, a low ceiling", Model{bandwidth: 400 * mib}, Link{Limits: fleet.Limits{BytesPerSecond: 20 * mib}}, true},
		{"a fast link, a high ceiling", Model{bandwidth: 400 * mib}, Link{Limits: fleet.Limits{BytesPerSecond: 200 * mib}}, false},
		{"memory that does not get smaller", Model{bandwidth: 11 * mib, packed: 0.95}, Link{}, false},
		{"told not to", Model{bandwidth: 11 * mib}, Link{Limits: fleet.Limits{Compress: fleet.CompressOff}}, false},
		{"told to", Model{bandwidth: 400 * mib}, Link{Limits: fleet.Limits{Compress: fleet.CompressOn}}, true},
		{"others are waited for", Model{bandwidth: 11 * mib}, Link{Limits: fleet.Limits{AwaitGang: true, Compress: fleet.CompressOn}}, false},
	} {
		if got := c.m.Packs(c.l); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}

// TestPackedMovesTeach: compressed moves teach the compression ratio, and nothing wrong
// about the link.
func TestPackedMovesTeach(t *testing.T) {
	truth := Model{bandwidth: 400 * mib, packed: 0.25}.known()
	var history []fleet.Migration
	for i, p := range append(programs(), programs()...) {
		m := past(i, truth, p, Link{Limits: fleet.Limits{Compress: fleet.CompressOn, BytesPerSecond: 20 * mib}}, 1)
		m.Cost.CopiedBytes = m.Cost.SentBytes * 4
		history = append(history, m)
	}
	m := Fit(history, Subject{Kind: fleet.VM, Job: "j9", From: "a", To: "b"})
	if m.packed < 0.24 || m.packed > 0.35 {
		t.Errorf("compression is taken to leave %.2f", m.packed)
	}
	if free := (Link{}).known(); m.Packs(free) {
		t.Errorf("after moves under a ceiling the link is taken for slow: %+v", m)
	}
}
