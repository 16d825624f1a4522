package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pagurus/decide/measures"
	"pagurus/fleet"
)

// meter counts what happens, since the process began. Several goroutines may use it.
type meter struct {
	jobs       *prometheus.CounterVec // that ended
	migrations *prometheus.CounterVec // likewise
	sent       prometheus.Counter
	blackout   prometheus.Histogram
	stall      prometheus.Histogram
	lost       prometheus.Counter
	commits    prometheus.Histogram
	refused    prometheus.Counter // by the store
	notices    *prometheus.CounterVec
	leads      prometheus.Gauge
}

// waitSeconds are times for which programs wait: from what nobody notices to what ends connections.
var waitSeconds = []float64{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100}

func newMeter() *meter {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: waitSeconds})
	}
	m := &meter{
		jobs:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pagurus_jobs_ended_total", Help: "Jobs that ended, by result."}, []string{"result"}),
		migrations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pagurus_migrations_ended_total", Help: "Migrations that ended, by how."}, []string{"phase"}),
		sent:       counter("pagurus_migration_sent_bytes_total", "What migrations that ended have sent."),
		blackout:   histogram("pagurus_migration_blackout_seconds", "How long guests did not run because they were moved."),
		stall:      histogram("pagurus_migration_stall_seconds", "The longest gap between two MPI calls of any rank around a switch, beyond its normal gap."),
		lost:       counter("pagurus_hosts_lost_total", "How often a host was gone while it took guests."),
		commits:    histogram("pagurus_store_commit_seconds", "How long the store took for a change."),
		refused:    counter("pagurus_store_errors_total", "Changes that the store did not take."),
		notices:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pagurus_notices_total", Help: "Tries to tell a receiver of webhooks or mail, by result; given up: it is not told."}, []string{"result"}),
		leads:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "pagurus_controller_leads", Help: "Whether this controller leads; then it shows the cluster, too."}),
	}
	for _, r := range []fleet.JobResult{fleet.JobFinished, fleet.JobFailed, fleet.JobCancelled} {
		m.jobs.WithLabelValues(string(r))
	}
	for _, r := range []string{"told", "failed", "given up"} {
		m.notices.WithLabelValues(r)
	}
	for _, p := range fleet.Phases {
		if p.Phase.Ended() {
			m.migrations.WithLabelValues(string(p.Phase))
		}
	}
	return m
}

// Monitored are the numbers that this controller counts itself.
func (c *Controller) Monitored() []prometheus.Collector {
	m := c.meter
	return []prometheus.Collector{m.jobs, m.migrations, m.sent, m.blackout, m.stall, m.lost, m.commits, m.refused, m.notices, m.leads}
}

// Measures are the numbers of the cluster at this moment, where this controller leads.
func (c *Controller) Measures() []measures.Family {
	s := c.current.Load()
	select {
	case <-c.over:
		return nil
	default:
	}
	if s == nil {
		return nil
	}
	now := *s
	now.At = time.Now()
	return measures.OfCluster(now)
}

// count counts what a change ended. before is the snapshot without it.
func (m *meter) count(before fleet.Snapshot, change fleet.Changeset) {
	for _, j := range change.Jobs {
		if j.State == fleet.JobEnded && before.Jobs[j.ID].State != fleet.JobEnded {
			m.jobs.WithLabelValues(string(j.Result)).Inc()
		}
	}
	for _, h := range change.Hosts {
		if h.Lost && !before.Hosts[h.ID].Lost {
			m.lost.Inc()
		}
	}
	for _, v := range change.Migrations {
		was := before.Migrations[v.ID]
		if v.Stall != nil && was.Stall == nil {
			m.stall.Observe(v.Stall.Took.Seconds())
		}
		if !v.Phase.Ended() || was.Phase.Ended() {
			continue
		}
		m.migrations.WithLabelValues(string(v.Phase)).Inc()
		m.sent.Add(float64(max(0, v.Cost.SentBytes+v.Cost.PostCopyBytes)))
		if v.Phase == fleet.Finished {
			m.blackout.Observe(v.BlackoutTime().Seconds())
		}
	}
}
