package sim

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"pagurus/decide/owners"
)

// BenchmarkEvents is the number of events a second on one core, in a pool of 10,000
// desktops with 300 jobs of 16 ranks, as in nd07cpu. It runs the garbage collector as
// rarely as `pagurus simulate`.
func BenchmarkEvents(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // no other cores for the garbage collector
	m, err := Named("nd07cpu")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range owners.Names() {
		b.Run(name, func(b *testing.B) {
			p, _ := owners.Named(name)
			var events, steps uint64
			begun := processor(b)
			for b.Loop() {
				r, err := Run(Config{Seed: 1, Hosts: 10_000, Owners: m, Policy: p, Work: Work{Jobs: 300}, For: 24 * time.Hour})
				if err != nil {
					b.Fatal(err)
				}
				events, steps = events+r.Events, steps+r.Steps
			}
			took := processor(b) - begun
			b.ReportMetric(float64(events)/took.Seconds(), "events/s")
			b.ReportMetric(float64(steps)/took.Seconds(), "steps/s")
			b.ReportMetric(float64(events)/float64(b.N), "events")
		})
	}
}

// processor is this process's CPU time: other programs do not count.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
