package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestWhoseProcessItIs(t *testing.T) {
	for text, want := range map[string]string{
		"7:freezer:/pagurus-lab-host2/j1g0\n2:cpu,cpuacct:/other\n0::/\n": "host2 j1g0",
		"0::/pagurus-lab-host1/j3g1/inside\n":                             "host1 j3g1",
		"7:freezer:/\n0::/pagurus-lab-host1/j3g1/inside\n":                "", // not yet in the freezer group
		"7:freezer:/pagurus/host2/j1g0\n":                                 "",
		"":                                                                "",
		"nonsense":                                                        "",
	} {
		host, guest, ok := grouped(text)
		if got := strings.TrimSpace(string(host) + " " + string(guest)); got != want || ok != (want != "") {
			t.Errorf("%q gave %q, %t", text, got, ok)
		}
	}
	for line, want := range map[string]bool{
		"/opt/pagurus-criu/lib/ld-linux-x86-64.so.2 --argv0 criu /opt/pagurus-criu/bin/criu.real swrk 3": true,
		"criu swrk 3": true, "/usr/sbin/criu swrk 3": true, "criu check": false, "vi swrk": false, "": false,
	} {
		if got := runtime(strings.Fields(line)); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
	if first(os.Getpid()) || first(1<<22-1) {
		t.Error("this counts as the first process of a container, or none does")
	}
}

// TestMeet: a process that appears a little later is killed; without one the fault has
// missed.
func TestMeet(t *testing.T) {
	sleeper := exec.Command("sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	looks := 0
	err := meet(t.Context(), func() []int {
		if looks++; looks < 3 {
			return nil
		}
		return []int{sleeper.Process.Pid}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sleeper.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v", err)
	}
	if err := meet(t.Context(), func() []int { return nil }); !errors.Is(err, errMissed) {
		t.Errorf("no connection came: %v", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if err := meet(ctx, func() []int { return nil }); err == nil {
		t.Error("it waited though it was cancelled")
	}
}
