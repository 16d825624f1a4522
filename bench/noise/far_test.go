package noise

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestCoresFarAwayAreProbed(t *testing.T) {
	asked, asks := io.Pipe()
	answers, answered := io.Pipe()
	done := make(chan error)
	go func() { done <- Serve(asked, answered) }()
	far, err := Reached(asks, answers)
	if err != nil {
		t.Fatal(err)
	}
	cpu := far.CPUs[0]
	c, err := far.Probe(cpu, 50*time.Millisecond)
	if err != nil || c.CPU != cpu || len(c.Quanta) == 0 {
		t.Errorf("%v, %v", c, err)
	}
	for bad, says := range map[ask]string{
		{cpu, 0}: "for 0s", {cpu, -time.Second}: "for -1s", {cpu, 2 * LongestFar}: "for up to 1h0m0s",
		{-1, time.Millisecond}: "no CPU -1", {100000, time.Millisecond}: "no CPU 100000",
	} {
		if _, err := far.Probe(bad.CPU, bad.Lasts); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	_ = asks.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNonsenseIsNoProbe(t *testing.T) {
	if err := Serve(strings.NewReader("nonsense"), io.Discard); err == nil {
		t.Error("nonsense was asked")
	}
	for _, said := range []string{"", "{}", `{"cpus":[]}`, `{"error":"no such"}`, "mpirun: not found"} {
		if _, err := Reached(io.Discard, strings.NewReader(said)); err == nil {
			t.Errorf("%q is a probe", said)
		}
	}
	far, err := Reached(io.Discard, strings.NewReader(`{"cpus":[0]}{"core":{"cpu":1}}{"core":{"cpu":0}}{`))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if c, err := far.Probe(0, time.Second); err == nil {
			t.Errorf("%v was found", c)
		}
	}
}
