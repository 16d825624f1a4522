package fleet

import (
	"strings"
	"testing"
	"time"
)

// What a host says is converted to another clock, and bounded.
func TestNoticesBy(t *testing.T) {
	wrong, right := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := EndNotices{SaidAt: wrong}
	for range 3 * MostEndNotices {
		n.Pending = append(n.Pending, EndNotice{Kind: AWSNotice, ID: strings.Repeat("é", 400), Says: strings.Repeat("é", 400), At: wrong.Add(time.Minute), Since: wrong})
	}
	got := n.By(right)
	if len(got.Pending) != MostEndNotices || !got.Pending[0].At.Equal(right.Add(time.Minute)) || !got.Pending[0].Since.Equal(right) || len(got.Pending[0].Says) > mostNoticeWords || len(n.Pending[0].Says) != 800 {
		t.Errorf("%+v", got.Pending[0])
	}
	if again := got.By(right); !again.Pending[0].At.Equal(got.Pending[0].At) {
		t.Errorf("%+v", again)
	}
}

func TestUrgent(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	soon, late := EndNotice{Kind: AWSNotice, ID: "1", At: at}, EndNotice{Kind: ShutdownNotice, ID: "1", At: at.Add(time.Hour)}
	n := &EndNotices{Pending: []EndNotice{late, soon}}
	if first, stands := n.Urgent(nil); !stands || first != soon {
		t.Errorf("%+v", first)
	}
	if first, stands := n.Urgent([]string{soon.Key()}); !stands || first != late {
		t.Errorf("%+v", first)
	}
	if _, stands := n.Urgent([]string{soon.Key(), late.Key()}); stands {
		t.Error("all are waived")
	}
	if _, stands := (*EndNotices)(nil).Urgent(nil); stands {
		t.Error("there are none")
	}
	if says := (EndNotice{Says: "it is switched off", At: at.Add(300 * time.Second)}).Sentence(at); says != "it is switched off in 5m" {
		t.Error(says)
	}
}
