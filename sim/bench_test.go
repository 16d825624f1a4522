package sim

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"pagurus/decide/owners"
)

// BenchmarkEvents is how many events a second one core gets through, in a pool
// of 10,000 desktops that 300 jobs of 16 ranks use, as nd07cpu has it. It looks
// for garbage as seldom as `pagurus simulate` does.
func BenchmarkEvents(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // nor does it on what others leave idle
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

// processor is how much of a core this process has had: other programs on the
// machine do not count.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
