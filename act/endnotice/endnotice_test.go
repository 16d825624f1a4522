package endnotice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// role makes a copy of the test binary another program.
const role = "PAGURUS_NOTICE_TEST"

func TestMain(m *testing.M) {
	inside := map[string]func() error{"logind": insideLogind, "clouds": insideClouds}
	if do := inside[os.Getenv(role)]; do != nil {
		if err := do(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// apart runs this binary in a role in namespaces of its own.
func apart(t *testing.T, as string, unshare ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "unshare", append(unshare, self)...)
	cmd.Env = append(os.Environ(), role+"="+as)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}

// TestLogind runs the real bus and logind in an environment of their own, where nothing can be switched off.
func TestLogind(t *testing.T) {
	testkit.Root(t, "unshare", "dbus-daemon", logindProgram)
	apart(t, "logind", "-m", "-p", "-f", "--mount-proc", "--kill-child")
}

// TestClouds plays the metadata services at their real address, on a network where nothing else is.
func TestClouds(t *testing.T) {
	testkit.Root(t, "unshare", "ip")
	apart(t, "clouds", "-n")
}

// heard is what a source told last.
type heard struct {
	mu      sync.Mutex
	times   int
	pending []fleet.EndNotice
	err     error
}

func (h *heard) tell(pending []fleet.EndNotice, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.times++; err == nil {
		h.pending = pending
	}
	h.err = err
}

// until waits for what is told.
func (h *heard) until(what string, holds func(pending []fleet.EndNotice, err error) bool) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		h.mu.Lock()
		is := h.times > 0 && holds(h.pending, h.err)
		h.mu.Unlock()
		if is {
			return nil
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(fmt.Errorf("not within 30 s: %s; there is %+v", what, h.pending), h.err)
}

func none(pending []fleet.EndNotice, err error) bool { return err == nil && len(pending) == 0 }

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"shutdown,sleep": "[shutdown sleep]", "off": "[]", "aws,aws": "[aws]", "": `!there is no notice ""`, "shutdown,off": `!there is no notice "off"`, "ups": "!there is no notice",
	} {
		kinds, err := Parse(strings.Split(text, ","))
		if got := fmt.Sprint(kinds); err == nil && got != want {
			t.Errorf("%q is %s, not %s", text, got, want)
		} else if err != nil && (want[0] != '!' || !strings.Contains(err.Error(), want[1:])) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestCloudOf(t *testing.T) {
	for file, c := range map[string]struct {
		says string
		want fleet.EndNoticeKind
	}{
		"sys_vendor": {"Amazon EC2\n", fleet.AWSNotice}, "product_name": {"Google Compute Engine\n", fleet.GoogleNotice}, "chassis_asset_tag": {azureTag + "\n", fleet.AzureNotice}, "bios_vendor": {"SeaBIOS", ""},
	} {
		root := t.TempDir()
		write(t, filepath.Join(root, "sys/class/dmi/id", file), c.says)
		if got := CloudOf(root); got != c.want {
			t.Errorf("%s %q: %q", file, c.says, got)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// What the kernel says of batteries becomes one charge: the machine's, not a mouse's, and of two the one that lasts longer.
func TestKernelCharge(t *testing.T) {
	battery := func(files ...string) map[string]string {
		out := map[string]string{"type": "Battery", "status": "Discharging"}
		for i := 0; i < len(files); i += 2 {
			out[files[i]] = files[i+1]
		}
		return out
	}
	low, high := battery("capacity", "8"), battery("energy_now", "30000000", "power_now", "60000000", "capacity", "40")
	for name, c := range map[string]struct {
		all  []map[string]string
		want charge
	}{
		"none":                {nil, charge{percent: -1}},
		"mains":               {[]map[string]string{{"type": "Mains", "online": "1"}}, charge{percent: -1}},
		"half an hour":        {[]map[string]string{high}, charge{falling: true, left: 30 * time.Minute, percent: 40}},
		"only a part":         {[]map[string]string{low}, charge{falling: true, percent: 8}},
		"by charge":           {[]map[string]string{battery("charge_now", "1000", "current_now", "4000", "capacity", "30")}, charge{falling: true, left: 15 * time.Minute, percent: 30}},
		"it says low":         {[]map[string]string{battery("capacity_level", "Low", "capacity", "20")}, charge{falling: true, percent: 20, low: true}},
		"a UPS":               {[]map[string]string{battery("type", "UPS", "time_to_empty_now", "300", "capacity", "9")}, charge{falling: true, left: 5 * time.Minute, percent: 9, ups: true}},
		"a mouse":             {[]map[string]string{battery("scope", "Device", "capacity", "2")}, charge{percent: -1}},
		"two":                 {[]map[string]string{low, high}, charge{falling: true, left: 30 * time.Minute, percent: 40}},
		"one of them loads":   {[]map[string]string{low, battery("status", "Charging", "capacity", "9")}, charge{percent: 9}},
		"nothing but rubbish": {[]map[string]string{battery("capacity", "x", "energy_now", "-", "power_now", "0")}, charge{falling: true, percent: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for i, files := range c.all {
				for f, says := range files {
					write(t, filepath.Join(folder, fmt.Sprint("BAT", i), f), says+"\n")
				}
			}
			if got, err := kernelCharge(folder); err != nil || got != c.want {
				t.Errorf("%+v %v, not %+v", got, err, c.want)
			}
		})
	}
	if got, err := kernelCharge("/nowhere"); err != nil || got.falling {
		t.Errorf("a kernel without power supplies: %+v %v", got, err)
	}
}

// A battery is a notice from its limit on until it loads, and its end does not move with each sample.
func TestBatteryJudge(t *testing.T) {
	t0, b := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), &battery{}
	if n := b.judge(charge{falling: true, left: 11 * time.Minute, percent: 15}, t0); n != nil {
		t.Errorf("it lasts: %+v", n)
	}
	first := b.judge(charge{falling: true, left: 10 * time.Minute, percent: 12}, t0)
	if len(first) != 1 || !first[0].At.Equal(t0.Add(9*time.Minute)) || !first[0].Guess {
		t.Fatalf("%+v", first)
	}
	if n := b.judge(charge{falling: true, left: 10*time.Minute + 10*time.Second}, t0); n[0] != first[0] {
		t.Errorf("it moves: %+v", n)
	}
	if n := b.judge(charge{falling: true, left: 20 * time.Minute}, t0); len(n) != 1 || n[0].ID != first[0].ID || !n[0].At.Equal(t0.Add(19*time.Minute)) {
		t.Errorf("it lasts longer: %+v", n)
	}
	if n := b.judge(charge{}, t0); n != nil {
		t.Errorf("it loads: %+v", n)
	}
	n := b.judge(charge{falling: true, percent: 5, ups: true}, t0)
	if len(n) != 1 || n[0].Says != "its UPS is empty" || !n[0].At.Equal(t0.Add(batteryGuess-batterySpare)) {
		t.Errorf("%+v", n)
	}
	if later := b.judge(charge{falling: true, percent: 4, ups: true}, t0.Add(2*time.Minute)); later[0] != n[0] {
		t.Errorf("a guess goes on for ever: %+v", later)
	}
}

func TestSlurmEnd(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for said, want := range map[string]time.Time{
		"JobId=7 RunTime=00:01:00 EndTime=2026-11-27T12:00:00 Deadline=N/A": at,
		"JobId=7 EndTime=1795780800 ":                                       at,
		"JobId=7 EndTime=Unknown":                                           {},
	} {
		if got, err := slurmEnd(said, time.UTC); err != nil || !got.Equal(want) {
			t.Errorf("%q: %s %v", said, got, err)
		}
	}
	for _, said := range []string{"", "slurm_load_jobs error", "EndTime=soon"} {
		if got, err := slurmEnd(said, time.UTC); err == nil {
			t.Errorf("%q: %s", said, got)
		}
	}
}

// A job of Slurm is a notice ten minutes before its end, and at once when Slurm has told it to end.
func TestSlurmJudge(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		end, signalled time.Time
		want           time.Time
	}{
		"no end":                 {},
		"far":                    {end: t0.Add(time.Hour)},
		"near":                   {end: t0.Add(9 * time.Minute), want: t0.Add(9 * time.Minute)},
		"preempted with a grace": {end: t0.Add(2 * time.Minute), signalled: t0, want: t0.Add(2 * time.Minute)},
		"told to end":            {end: t0.Add(time.Hour), signalled: t0, want: t0.Add(slurmWait)},
		"told to end, no end":    {signalled: t0, want: t0.Add(slurmWait)},
	} {
		got := (&slurm{}).judge(c.end, c.signalled, t0)
		if len(got) != 0 != !c.want.IsZero() || len(got) > 0 && !got[0].At.Equal(c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
