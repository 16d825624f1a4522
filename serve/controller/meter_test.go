package controller

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"pagurus/decide/measures"
	"pagurus/fleet"
	"pagurus/serve/metrics"
)

// readMetrics gives what monitoring reads at an address.
func readMetrics(t *testing.T, address string) string {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	r, err := client.Get("http://" + address + metrics.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", r.StatusCode, text)
	}
	return string(text)
}

// shows starts what the controller's program starts for monitoring.
func (r *rig) shows() (address string) {
	r.t.Helper()
	l, err := metrics.Listen("127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	from := metrics.New("build", r.ctl.Measures)
	from.MustRegister(r.ctl.Monitored()...)
	ctx, stop := context.WithCancel(r.ctx)
	over := make(chan error, 1)
	go func() { over <- metrics.Serve(ctx, l, "", from, slog.New(slog.DiscardHandler)) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			r.t.Error(err)
		}
	})
	return l.Addr().String()
}

// says reports whether a line is in what monitoring reads.
func says(text, line string) bool { return slices.Contains(strings.Split(text, "\n"), line) }

// TestMetrics: what monitoring reads of a controller while a job runs, a guest moves and the job ends, with names that
// Prometheus's linter likes.
func TestMetrics(t *testing.T) {
	r := newRig(t)
	at := r.shows()
	r.attach("host1")
	r.attach("host2")
	id := r.submit(2)
	snap := r.until("the job to run", running(id))
	text := readMetrics(t, at)
	for _, line := range []string{
		`pagurus_hosts{state="up"} 2`, `pagurus_hosts{state="gone"} 0`, `pagurus_jobs{state="running"} 1`, `pagurus_jobs{state="pending"} 0`, `pagurus_guests{state="running"} 2`,
		`pagurus_host_connected{host="host1"} 1`, `pagurus_host_cpus{host="host2"} 4`, `pagurus_controller_leads 1`, `pagurus_migrations_ended_total{phase="finished"} 0`, `pagurus_build_info{version="build"} 1`,
	} {
		if !says(text, line) {
			t.Errorf("it does not say %s", line)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	answer, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Migrate, Guest: snap.Guests[fleet.GuestID(string(id)+"g0")].ID})
	if err != nil {
		t.Fatal(err)
	}
	r.until("the move to end", func(s fleet.Snapshot) bool { return !s.Moves[answer.Moves[0]].Ended.IsZero() })
	if _, err := r.client.Ask(r.ctx, fleet.Request{Verb: fleet.Cancel, Job: id}); err != nil {
		t.Fatal(err)
	}
	r.until("the job to end", jobEnded(id))
	text = readMetrics(t, at)
	for _, line := range []string{`pagurus_migrations_ended_total{phase="finished"} 1`, `pagurus_migration_blackout_seconds_count 1`, `pagurus_jobs_ended_total{result="cancelled"} 1`, `pagurus_jobs{state="running"} 0`} {
		if !says(text, line) {
			t.Errorf("it does not say %s", line)
		}
	}
	r.stop()
	text = readMetrics(t, at)
	if !says(text, "pagurus_controller_leads 0") || strings.Contains(text, "pagurus_hosts{") {
		t.Error("a controller that does not lead shows an old cluster")
	}
	if post, err := http.Post("http://"+at+metrics.Path, "text/plain", strings.NewReader("x")); err != nil || post.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("%v, %v", post, err)
	} else {
		post.Body.Close()
	}
}

// TestAlertsNameWhatThereIs: rules and board ask only for numbers that controllers and agents show.
func TestAlertsNameWhatThereIs(t *testing.T) {
	f := fleet.Facts{Power: &fleet.Power{Joules: 1}, Vault: &fleet.VaultFacts{}, Guests: map[fleet.GuestID]fleet.GuestFacts{"j1g0": {}}, Copies: map[fleet.MigrationID]fleet.Progress{"m1.j1g0": {}}}
	s := fleet.NewSnapshot()
	s.Hosts["host1"] = fleet.Host{ID: "host1", Facts: f}
	r := metrics.New("build", func() []measures.Family { return append(measures.OfHost(f, true), measures.OfCluster(s)...) })
	r.MustRegister((&Controller{meter: newMeter()}).Monitored()...)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(all).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	var there []string
	for _, f := range all {
		there = append(there, f.GetName(), f.GetName()+"_bucket", f.GetName()+"_count", f.GetName()+"_sum")
	}
	for _, name := range []string{"pagurus.rules.yml", "pagurus.rules.test.yml", "pagurus.grafana.json"} {
		text, err := os.ReadFile("../../packaging/monitoring/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`pagurus_[a-z0-9_]+`).FindAllString(string(text), -1) {
			if !slices.Contains(there, found) {
				t.Errorf("%s asks for %s, which nobody shows", name, found)
			}
		}
		if strings.HasSuffix(name, ".json") && !json.Valid(text) {
			t.Errorf("%s is not JSON", name)
		}
	}
}
