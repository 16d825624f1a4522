package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheMachineByHandIsTheGuests(t *testing.T) {
	line := strings.Split("-name|guest=j1g0|-machine|pc-q35-7.2,sata=off|-accel|kvm|-cpu|host|-smp|1|-m|524288K|-kernel|/k|-append|quiet mitigations=off|-device|x", "|")
	got, err := same(line)
	want := []string{"-machine", "pc-q35-7.2,sata=off", "-accel", "kvm", "-cpu", "host", "-smp", "1", "-m", "524288K", "-append", "quiet mitigations=off"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := same(line[2:4]); err == nil {
		t.Error("half a command line is taken")
	}
}

func TestElsewhereIsATargetByHand(t *testing.T) {
	got := strings.Join(elsewhere(strings.Split("-m 512M -sandbox on -netdev tap,id=net,fd=3 -S -incoming defer -device x", " "), 0), " ")
	if want := "-m 512M -netdev tap,id=net,ifname=pghand0,script=no,downscript=no -device x -incoming tcp:0.0.0.0:4999"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestDaemonsAreThoseOfTheLab(t *testing.T) {
	const whole = `{"up":true,"parts":[{"name":"controller","pid":7},{"name":"host1","pid":8},{"name":"host2","pid":9},{"name":"host3","pid":10}]}`
	if controller, agents, err := daemonsOf([]byte(whole)); err != nil || controller != 7 || !slices.Equal(agents, []int{8, 9, 10}) {
		t.Errorf("%d, %v, %v", controller, agents, err)
	}
	for _, part := range []string{strings.Replace(whole, `"pid":9`, `"running":false`, 1), `{"up":false}`, ""} {
		if _, _, err := daemonsOf([]byte(part)); err == nil {
			t.Errorf("%s is whole", part)
		}
	}
}

func TestAPartOfTheLab(t *testing.T) {
	const whole = `{"parts":[{"name":"controller","pid":7,"address":"198.18.0.254:7461"},{"name":"host1"}]}`
	if pid, address, err := partOf([]byte(whole), "controller"); err != nil || pid != 7 || address != "198.18.0.254:7461" {
		t.Errorf("%d, %q, %v", pid, address, err)
	}
	for _, other := range []string{"host1", "host2"} {
		if pid, _, err := partOf([]byte(whole), other); err == nil {
			t.Errorf("%s is process %d", other, pid)
		}
	}
}

func TestResidentMemory(t *testing.T) {
	if got := residentMiB("Name:\tinit\nVmRSS:\t    9216 kB\nThreads:\t7\nVmRSS:\t 512 kB\n"); !slices.Equal(got, []float64{9, 0.5}) {
		t.Errorf("resident are %v", got)
	}
}

func TestTheParallelJobSaysHowLongItsStepsTook(t *testing.T) {
	if s, ok := doneIn("BEGUN\nDONE 200 1.250000 12.500\n", 200); !ok || s != 12.5 {
		t.Errorf("%v %v", s, ok)
	}
	for _, bad := range []string{"", "BEGUN\n", "DONE 100 1.0 2.0\n", "DONE 200 1.0\n"} {
		if _, ok := doneIn(bad, 200); ok {
			t.Errorf("%q is an end", bad)
		}
	}
}

func TestLoopTime(t *testing.T) {
	if got, err := loopTime("Step Temp\n0 3\nLoop time of 12.5 on 2 procs for 1000 steps\n"); err != nil || got != 12500*time.Millisecond {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range []string{"", "Loop time of", "Loop time of x on", "Loop time of 0 on"} {
		if got, err := loopTime(bad); err == nil {
			t.Errorf("%q took %s", bad, got)
		}
	}
}

// The catalogue and this program agree on what it measures.
func TestTheCatalogueIsCarriedOut(t *testing.T) {
	b := newExperiments()
	left := b.measures()
	for _, trial := range b.trials() {
		if trial.Measure == nil || trial.Says == "" {
			t.Errorf("nobody carries %s out", trial.Name)
		}
		delete(left, trial.Name)
	}
	for name := range left {
		t.Errorf("%s is not in the catalogue", name)
	}
}
