package memory

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

const benchPages = 128 << 8 // 128 MiB

// BenchmarkPass makes passes over memory that was written whole: without a connection to the
// target, and into a store.
func BenchmarkPass(b *testing.B) {
	for name, huge := range map[string]int{"small": -1, "huge": 1} {
		for _, kept := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/kept=%t", name, kept), func(b *testing.B) {
				s := startSubject(b, "obey")
				s.do("map 0 %d %d", benchPages, huge)
				s.do("fill 0 1")
				tr, store := track(b, s.pid), newStore(b)
				send := func(Piece, []byte) error { return nil }
				if kept {
					send = into(store)
				}
				b.SetBytes(benchPages * PageBytes)
				for b.Loop() {
					b.StopTimer()
					s.do("touch 0 1 1")
					b.StartTimer()
					if _, err := tr.Pass(b.Context(), []int{s.pid}, send); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkScattered makes passes over memory of which every eighth page was written.
func BenchmarkScattered(b *testing.B) {
	s := startSubject(b, "obey")
	s.do("map 0 %d -1", benchPages)
	s.do("fill 0 1")
	tr := track(b, s.pid)
	b.SetBytes(benchPages * PageBytes / 8)
	for b.Loop() {
		b.StopTimer()
		s.do("touch 0 8 1")
		b.StartTimer()
		if _, err := tr.Pass(b.Context(), []int{s.pid}, func(Piece, []byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDirty counts the written pages of memory that was not written.
func BenchmarkDirty(b *testing.B) {
	s := startSubject(b, "obey")
	s.do("map 0 %d -1", benchPages)
	s.do("fill 0 1")
	tr := track(b, s.pid)
	onePass(b, tr, newStore(b), s.pid)
	b.SetBytes(benchPages * PageBytes)
	for b.Loop() {
		if _, err := tr.Dirty(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTrack starts and ends tracking a process.
func BenchmarkTrack(b *testing.B) {
	s := startSubject(b, "obey")
	s.do("threads 0 8")
	var stops []time.Duration
	for b.Loop() {
		tr := track(b, s.pid)
		stops = append(stops, tr.Stopped())
		if err := tr.Close(); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(stops)
	b.ReportMetric(float64(stops[0].Microseconds()), "µs-stopped-least")
	b.ReportMetric(float64(stops[len(stops)/2].Microseconds()), "µs-stopped-median")
}

// BenchmarkWritten measures what tracking costs a process that writes to every page: untracked,
// tracked, and tracked after a pass.
func BenchmarkWritten(b *testing.B) {
	for _, how := range []string{"untracked", "tracked"} {
		b.Run(how, func(b *testing.B) {
			s := startSubject(b, "obey")
			s.do("map 0 %d -1", benchPages)
			s.do("fill 0 1")
			tr := track(b, s.pid)
			if how == "untracked" {
				if err := tr.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(benchPages * PageBytes)
			for b.Loop() {
				b.StopTimer()
				if _, err := tr.Pass(b.Context(), pidsOf(how, s), func(Piece, []byte) error { return nil }); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				s.do("touch 0 1 1")
			}
		})
	}
}

func pidsOf(how string, s *subject) []int {
	if how == "untracked" {
		return nil
	}
	return []int{s.pid}
}

// BenchmarkServe sends pages to a CRIU that discards them.
func BenchmarkServe(b *testing.B) {
	store := newStore(b)
	for i := range uint64(benchPages / 256) {
		filled(b, store, 1, i*256*PageBytes+1<<30, 256)
	}
	a := serve(b, store)
	b.SetBytes(benchPages * PageBytes)
	for b.Loop() {
		for i := uint64(0); i < benchPages; i += 1024 {
			a.get(1, i*PageBytes+1<<30, 1024)
		}
	}
}

// BenchmarkRestore measures the time from the last pass until processes run elsewhere, and until
// the end of the copy. There are two processes of so many MiB each.
func BenchmarkRestore(b *testing.B) {
	for _, mib := range []int{50, 500} {
		for _, lazy := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dMiB/lazy=%t", mib, lazy), func(b *testing.B) {
				k := keepMemory(b, mib/2)
				var dumped, run, whole time.Duration
				for b.Loop() {
					images, store, pids := imagesFolder(b), newStore(b), k.pids()
					tr := track(b, pids...)
					for range 3 {
						onePass(b, tr, store, pids...)
					}
					begun := time.Now()
					b.Logf("last: %+v after %v", lastPass(b, tr, store, k.suspend()...), time.Since(begun))
					k.dump(images)
					dumped += time.Since(begun)
					k.gone(pids)
					begun = time.Now()
					if lazy {
						wait := k.beginLazily(images, store)
						run += time.Since(begun)
						wait()
					} else {
						if err := store.Complete(images); err != nil {
							b.Fatal(err)
						}
						b.Logf("complete: %v", time.Since(begun))
						k.restore(images)
						k.thaw()
						run += time.Since(begun)
					}
					whole += time.Since(begun)
					k.goesOn()
					_ = store.Close()
				}
				n := float64(b.N)
				b.ReportMetric(dumped.Seconds()/n, "s-dump")
				b.ReportMetric(run.Seconds()/n, "s-to-run")
				b.ReportMetric(whole.Seconds()/n, "s-whole")
			})
		}
	}
}
