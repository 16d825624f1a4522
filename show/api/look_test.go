package api

import (
	"syscall"
	"testing"

	"pagurus/fleet"
	"pagurus/show/scripted"
	"pagurus/show/view"
)

// spent is the processor time of this process, in nanoseconds: on a busy machine the time of a clock says little.
func spent(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkLook is a look at 10,000 hosts and 20,000 guests, one of which has changed; what a watcher that begins is sent is printed, too.
func BenchmarkLook(b *testing.B) {
	for name, brief := range map[string]bool{"brief": true, "full": false} {
		b.Run(name, func(b *testing.B) {
			s, f := scripted.Crowd(10_000), newFeed(brief)
			f.takeChanges(f.looks.changes(s, view.Read))
			all, _ := chosenKinds("")
			plain, packed := 0, 0
			for _, p := range f.beginning(all).pieces {
				plain += len(p.plain)
				packed += len(p.pack())
			}
			before := spent(b)
			for n := 0; b.Loop(); n++ {
				h := s.Hosts["host7"]
				h.State = []fleet.HostState{fleet.HostDraining, fleet.HostUp}[n%2]
				s.Hosts["host7"] = h
				changes := f.looks.changes(s, view.Read)
				if len(changes) != 1 {
					b.Fatalf("%d changes", len(changes))
				}
				f.takeChanges(changes)
			}
			b.ReportMetric(float64(spent(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
			b.ReportMetric(float64(plain)/1024, "KiB")
			b.ReportMetric(float64(packed)/1024, "packed-KiB")
		})
	}
}
