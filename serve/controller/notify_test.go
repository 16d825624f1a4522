package controller

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/notices"
)

// TestNotices: a webhook hears of a job's end while another receiver is away, nobody waits for that one, and it hears of it from
// the next controller.
func TestNotices(t *testing.T) {
	var mu sync.Mutex
	heard, away := map[string][]fleet.Notice{}, true
	hook := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var n fleet.Notice
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = json.Unmarshal(body, &n)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil || name == "second" && away {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			heard[name] = append(heard[name], n)
		}))
		t.Cleanup(s.Close)
		return s
	}
	r := newRig(t)
	r.stop()
	for _, name := range []string{"first", "second"} {
		w, err := notices.NewWebhook(hook(name).URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.receivers = append(r.receivers, w)
	}
	r.start()
	r.attach("host1")
	id := r.submit(1)
	r.until("the job to run", running(id))
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: id}); err != nil {
		t.Fatal(err)
	}
	r.until("its end", jobEnded(id))
	count := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return len(heard[name])
	}
	r.waitFor("the first receiver to hear it", func() bool { return count("first") == 1 })
	r.waitFor("that to be kept", func() bool {
		marks, bad, err := r.ctl.Notify.Store.LoadNoticeMarks(r.ctx)
		if err != nil || len(bad) > 0 {
			t.Fatal(bad, err)
		}
		for _, m := range marks {
			if len(m.Told) == 1 {
				return true
			}
		}
		return false
	})
	r.stop()
	mu.Lock()
	away = false
	mu.Unlock()
	r.start()
	r.waitFor("the second receiver to hear it from the next controller", func() bool { return count("second") == 1 })
	n, again := heard["first"][0], heard["second"][0]
	if n.ID != again.ID || n.Job != id || n.Kind != fleet.JobEndedNotice || n.Result != fleet.JobCancelled || n.Cluster == "" {
		t.Errorf("%+v, %+v", n, again)
	}
	if count("first") != 1 {
		t.Errorf("told again what it was told: %+v", heard["first"])
	}
}
