package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
)

const mib = 1 << 20

// ownMemory is memory of this process outside of Go's heap.
func ownMemory(t *testing.T, size int) ([]byte, ramArea) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	return b, ramArea{PID: os.Getpid(), Start: uintptr(unsafe.Pointer(unsafe.SliceData(b))), Bytes: int64(size)}
}

func near(got, want, slack int64) bool { return got > want-slack && got < want+slack }

func TestLookFindsWhatIsFilledAndWhatChanges(t *testing.T) {
	b, area := ownMemory(t, 64*mib)
	page := os.Getpagesize()
	for i := 0; i < 32*mib; i += page {
		b[i] = 1
	}
	for i := 32 * mib; i < 40*mib; i += page {
		b[i] = 0 // present, but all zeros
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { // changes 8 MiB repeatedly, 4 of them formerly untouched
		defer close(over)
		for n := byte(1); ctx.Err() == nil; n++ {
			for i := 28 * mib; i < 32*mib; i += page {
				b[i]++
			}
			for i := 60 * mib; i < 64*mib; i += page {
				b[i] = max(n, 1)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	defer func() { stop(); <-over }()
	time.Sleep(20 * time.Millisecond)
	p, err := sampleRAM(t.Context(), area, host.SamplePlan{Pages: 8192, After: []time.Duration{50 * time.Millisecond, 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", p)
	if p.MemoryBytes != 64*mib || !near(p.FilledBytes, 36*mib, 2*mib) || p.Pages != 8192 || p.Took <= 0 {
		t.Errorf("the look gave %+v", p)
	}
	if len(p.Changed) != 3 {
		t.Fatalf("%d points, want 3", len(p.Changed))
	}
	for _, c := range p.Changed {
		if !near(c.Bytes, 8*mib, 2*mib) {
			t.Errorf("%d MiB changed within %s", c.Bytes>>20, c.Within)
		}
	}
}

// TestLookLeavesNothing: untouched pages are still not allocated.
func TestLookLeavesNothing(t *testing.T) {
	_, area := ownMemory(t, 64*mib)
	before := resident(t)
	p, err := sampleRAM(t.Context(), area, host.SamplePlan{Pages: 1 << 14, After: []time.Duration{time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if p.FilledBytes != 0 || p.Changed[0].Bytes != 0 {
		t.Errorf("untouched memory gave %+v", p)
	}
	if grown := resident(t) - before; grown > 16*mib {
		t.Errorf("looking made %d MiB resident", grown>>20)
	}
}

func resident(t *testing.T) int64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Maxrss << 10
}

func TestLookEnds(t *testing.T) {
	_, area := ownMemory(t, mib)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := sampleRAM(ctx, area, host.SamplePlan{Pages: 16, After: []time.Duration{time.Hour}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a look whose context ended: %v", err)
	}
	for _, bad := range []struct {
		a ramArea
		p host.SamplePlan
	}{
		{ramArea{}, host.SamplePlan{Pages: 1, After: []time.Duration{1}}}, {area, host.SamplePlan{}}, {area, host.SamplePlan{Pages: 1}},
		{ramArea{PID: 1 << 30, Start: 1 << 20, Bytes: mib}, host.SamplePlan{Pages: 1, After: []time.Duration{1}}},
	} {
		if p, err := sampleRAM(t.Context(), bad.a, bad.p); err == nil {
			t.Errorf("looking at %+v gave %+v", bad, p)
		}
	}
	// What is no memory at all is empty, not an error.
	if p, err := sampleRAM(t.Context(), ramArea{PID: os.Getpid(), Start: 1 << 20, Bytes: mib}, host.SamplePlan{Pages: 16, After: []time.Duration{1}}); err != nil || p.FilledBytes != 0 {
		t.Errorf("looking at nothing gave %+v, %v", p, err)
	}
}

func TestFind(t *testing.T) {
	says := func(said string, base int64) (ramArea, error) {
		return findRAM(t.Context(), 7, func(_ context.Context, command string, _, out any) error {
			switch out := out.(type) {
			case *string:
				*out = said
			default:
				text := fmt.Sprintf(`{"base-memory":%d}`, base)
				return json.Unmarshal([]byte(text), out)
			}
			return nil
		})
	}
	if a, err := says("Host virtual address for 0x0 (pc.ram) is 0x7f25cff00000\r\n", mib); err != nil || a != (ramArea{7, 0x7f25cff00000, mib}) {
		t.Errorf("%+v, %v", a, err)
	}
	for _, said := range []string{"", "No memory is mapped at address 0x0", "… is 0x"} {
		if a, err := says(said, mib); err == nil {
			t.Errorf("%q gave %+v", said, a)
		}
	}
	if a, err := says("x is 0x10", 0); err == nil {
		t.Errorf("no memory at all gave %+v", a)
	}
}
