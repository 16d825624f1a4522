package sim

import (
	"testing"
	"time"

	"pagurus/decide/owners"
)

// BenchmarkEvents is how many events a second one core gets through, in a pool
// of 10,000 desktops that 300 jobs of 16 ranks use, as nd07cpu has it.
func BenchmarkEvents(b *testing.B) {
	m, err := Named("nd07cpu")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range owners.Names() {
		b.Run(name, func(b *testing.B) {
			p, _ := owners.Named(name)
			var events, steps uint64
			var took time.Duration
			for b.Loop() {
				r, err := Run(Config{Seed: 1, Hosts: 10_000, Owners: m, Policy: p, Work: Work{Jobs: 300}, For: 24 * time.Hour})
				if err != nil {
					b.Fatal(err)
				}
				events, steps, took = events+r.Events, steps+r.Steps, took+r.Took
			}
			b.ReportMetric(float64(events)/took.Seconds(), "events/s")
			b.ReportMetric(float64(steps)/took.Seconds(), "steps/s")
			b.ReportMetric(float64(events)/float64(b.N), "events")
		})
	}
}
