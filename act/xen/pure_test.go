package xen

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
)

func TestParseList(t *testing.T) {
	const head = "Name                                        ID   Mem VCPUs\tState\tTime(s)   UUID                            Reason-Code\tSecurity Label\n"
	const dom0 = "Domain-0                                     0   384     1     r-----       9.5 00000000-0000-0000-0000-000000000000        -                -\n"
	const one = "1f0c2d3e-0000-0000-0000-000000000000"
	for text, want := range map[string][]domain{
		head + dom0: {},
		head + dom0 + "pagurus-j1g0     3   144     1     -b----       1.5 " + one + "        -                -\n": {
			{Name: "pagurus-j1g0", UUID: one, Number: 3, MiB: 144, State: "-b----", CPUTime: 1500 * time.Millisecond, Reason: -1}},
		head + dom0 + "pagurus-j1g0     3   144     1     ---s--       1.5 " + one + "        2                -\n": {
			{Name: "pagurus-j1g0", UUID: one, Number: 3, MiB: 144, State: "---s--", CPUTime: 1500 * time.Millisecond, Reason: suspendReason}},
		head + dom0 + "(null)     4   0     0     --psd-       0.0\n": {},
		head + dom0 + "(null)     4   144     1     -b----       1.5 " + one + "        -                -\n": {
			{UUID: one, Number: 4, MiB: 144, State: "-b----", CPUTime: 1500 * time.Millisecond, Reason: -1}},
		head + dom0 + "half a line\n":          nil,
		head + dom0 + "x y 1 1 r----- 1 u -\n": nil,
	} {
		got, err := parseList(text)
		if (err != nil) != (want == nil) || want != nil && !slices.Equal(got, want) {
			t.Errorf("%q is %+v: %v", text, got, err)
		}
	}
}

// A domain is known by its UUID when it has no name; one that is dying is gone.
func TestFind(t *testing.T) {
	all := []domain{
		{Name: "a", UUID: "of another version", Number: 3, State: "-b----"}, {UUID: uuidOf("b"), Number: 4, State: "--p---"},
		{UUID: uuidOf("c"), Number: 5, State: "--pssd"}, {Name: "d", UUID: uuidOf("d"), Number: 6, State: "--ps-d"},
	}
	for name, want := range map[string]int{"a": 3, "b": 4, "c": 0, "d": 0, "e": 0} {
		if got, is := find(all, name); got.Number != want || is != (want > 0) {
			t.Errorf("%s is %+v", name, got)
		}
	}
}

// A guest whose warden is killed is not said to have ended before its domain has been destroyed, which cannot be as long as xl fails: it
// would be started elsewhere, and run twice.
func TestDomainStays(t *testing.T) {
	xl := filepath.Join(t.TempDir(), "xl")
	if err := os.WriteFile(xl, []byte("#!/bin/sh\necho no xenstored >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := &Driver{config: Config{Run: t.TempDir(), Prefix: "p-", Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, tools: tools{XL: xl}}
	d.guests.Kill, d.guests.Wipe = d.end, d.wipe
	d.life, d.closes = context.WithCancel(t.Context())
	warden := exec.Command("sleep", "1000")
	if err := errors.Join(os.MkdirAll(d.dir("j1g0"), 0o700), warden.Start()); err != nil {
		t.Fatal(err)
	}
	p, err := host.Find(warden.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := p.Watch()
	if err != nil {
		t.Fatal(err)
	}
	r := record{Record: host.Record{Guest: "j1g0", Gen: 2, Complete: true, Process: p}}
	g, err := d.attach(r, handle)
	if err == nil {
		err = warden.Process.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	<-g.Died
	select {
	case <-g.Ended:
		t.Fatal("it is said to have ended")
	case <-time.After(time.Second):
	}
	for _, c := range []struct {
		all  []domain
		want fleet.RunState
	}{
		{[]domain{{Name: "p-j1g0", Number: 7, State: "-b----"}}, fleet.Running}, {[]domain{{UUID: uuidOf("p-j1g0"), Number: 7, State: "r-----"}}, fleet.Running},
		{[]domain{{Name: "p-j1g0", Number: 7, State: "--ps-d"}}, ""}, {[]domain{{Name: "p-j2g0", Number: 8, State: "-b----"}}, ""},
	} {
		facts, is := g.inspect(t.Context(), c.all, "p-j1g0")
		if facts.Run != c.want || is != (c.want != "") {
			t.Errorf("with %+v it is %q, %v", c.all, facts.Run, is)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.absent(ctx); err == nil || errors.Is(err, fleet.ErrAbsent) {
		t.Errorf("calls are told %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-g.Ended:
		t.Error("it is said to have ended as the driver was closed")
	default:
	}
	if _, err := os.Stat(g.Dir); err != nil {
		t.Errorf("the next driver does not find it: %v", err)
	}
}

// passing is a message about pages, as libxl-save-helper writes it.
func passing(context, doing string, done, total uint64) []byte {
	m := binary.LittleEndian.AppendUint16(nil, msgProgress)
	for _, text := range []string{context, doing} {
		m = binary.LittleEndian.AppendUint32(m, uint32(len(text)+1))
		m = append(append(m, text...), 0)
	}
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(m, done), total)
}

func TestParseProgress(t *testing.T) {
	whole := passing("xc", "Frames iteration 1", 1024, 4096)
	if p, is := parseProgress(whole); !is || p != (passed{1024, 4096, 2}) || kind(whole) != msgProgress {
		t.Errorf("it is %+v, %v", p, is)
	}
	for n := 2; n < len(whole); n++ {
		if p, is := parseProgress(whole[:n]); is {
			t.Errorf("%d bytes are %+v", n, p)
		}
	}
	if p, is := parseProgress(passing("xc", "Frames", 1, 2)); !is || p.Round != 0 {
		t.Errorf("without a round it is %+v", p)
	}
}

// FuzzHelper: no message of the helper's ends the saver.
func FuzzHelper(f *testing.F) {
	f.Add(passing("xc", "Frames iteration 1", 1, 2))
	f.Add([]byte{2, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := readFrame(bytes.NewReader(text))
		if err == nil && len(m) >= 2 {
			parseProgress(m)
		}
		if len(text) >= 2 {
			parseProgress(text)
		}
		_, _ = parseList(string(text))
	})
}

// FuzzWire: nothing that a peer sends is more than the buffer takes.
func FuzzWire(f *testing.F) {
	f.Add([]byte{wireStream, 0, 0, 0, 1, 'x'})
	f.Add([]byte{wireStream, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, text []byte) {
		kind, content, err := readWire(bytes.NewReader(text), make([]byte, 64))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := sendWire(&again, kind, content); err != nil || !bytes.HasPrefix(text, again.Bytes()) {
			t.Errorf("%x is %q %x: %v", text, kind, content, err)
		}
	})
}

// No name that a guest or an image may have ends a line of xl's configuration, or a word of it.
func TestConfig(t *testing.T) {
	s := spec{Domain: "a\"\nkernel = \"/etc/shadow", CPUs: 2, MemoryBytes: 100<<20 + 1, Port: OverlayPort(7, 2), Share: share{Weight: 512, Cap: 50}, LinkScript: "/run/x/vif"}
	text := s.config("/dev/loop3")
	if strings.Count(text, "\nkernel = ") != 1 || !strings.Contains(text, "\nmemory = 101\n") || !strings.Contains(text, "target=/dev/loop3") ||
		!strings.Contains(text, "mac=02:70:67:00:07:03,vifname=pgv700007.2,script=/run/x/vif") || !strings.Contains(text, "\ncpu_weight = 512\ncap = 50\n") || strings.Contains(text, "destroy") {
		t.Error(text)
	}
}

// libxl's first round has more pages than the guest.
func TestProgressOfTheFirstRound(t *testing.T) {
	for _, c := range []struct {
		is   progress
		left int64
	}{
		{progress{}, 256 << 20},
		{progress{Rounds: 1, RoundBytes: 4 << 30}, 256 << 20},
		{progress{Rounds: 1, RoundBytes: 4 << 30, RoundSent: 3 << 30}, 64 << 20},
		{progress{Rounds: 2, RoundBytes: 9 << 20, RoundSent: 1 << 20}, 8 << 20},
		{progress{Rounds: 2, RoundBytes: 9 << 20, RoundSent: 1 << 20, Held: true}, 9 << 20},
		{progress{Rounds: 2, RoundBytes: 9 << 20, Done: true}, 0},
	} {
		if p := c.is.of(256 << 20); p.RemainingBytes != c.left || p.TotalBytes != 256<<20 {
			t.Errorf("%+v: %d of %d bytes are left", c.is, p.RemainingBytes, p.TotalBytes)
		}
	}
}

func TestWeightSaid(t *testing.T) {
	for text, want := range map[string]int{
		"Name                                ID Weight  Cap\nDomain-0                             0    256    0\n": 256,
		"Domain-0 0 4096 0":                4096,
		"":                                 0,
		"Name  ID Weight  Cap\n":           0,
		"\x00\nDomain-0 0 many 0 \n\n  \n": 0,
	} {
		if weight, err := weightSaid(text); weight != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v", text, weight, err)
		}
	}
}

func TestWhyEnded(t *testing.T) {
	for _, c := range []struct {
		reason       string
		unknown      error
		why          string
		died, killed bool
	}{
		{"poweroff", nil, "it switched itself off", false, false},
		{"crash", nil, "its kernel crashed", true, false},
		{destroyed, nil, "somebody destroyed its domain", true, true},
		{"watchdog", nil, "Xen ended it: watchdog", true, false},
		{"", os.ErrNotExist, "its warden on this host was killed by SIGKILL", true, true},
	} {
		why, died, killed := whyEnded(c.reason, host.Exit{Known: true, Signal: 9}, c.unknown)
		if why != c.why || died != c.died || killed != c.killed {
			t.Errorf("%q: %q, %v, %v", c.reason, why, died, killed)
		}
	}
}

func TestBounded(t *testing.T) {
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := &bounded{f}
	for range 3 * consoleBytes / 1000 {
		if _, err := b.Write(append(bytes.Repeat([]byte("#"), 999), '\n')); err != nil {
			t.Fatal(err)
		}
	}
	_, err = b.Write([]byte("last"))
	text, err2 := os.ReadFile(f.Name())
	if err := errors.Join(err, err2); err != nil || len(text) > consoleBytes || len(text) < consoleBytes/2 || !bytes.HasSuffix(text, []byte("#\nlast")) {
		t.Errorf("%d bytes end with %.9q: %v", len(text), text[max(0, len(text)-9):], err)
	}
}

func TestBoots(t *testing.T) {
	dir := t.TempDir()
	if err := boots(dir); err == nil {
		t.Error("an image without modules boots")
	}
	for text, want := range map[string]bool{
		"": false, strings.Repeat("x", 3<<20): false,
		strings.Repeat("x", 1<<20-5) + "lib" + diskModule + strings.Repeat("y", 1<<20): true, "a" + diskModule: true,
	} {
		if err := os.WriteFile(filepath.Join(dir, "modules.cpio"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := boots(dir); (err == nil) != want {
			t.Errorf("of %d bytes: %v", len(text), err)
		}
	}
}

func TestParseAbout(t *testing.T) {
	info := func(total, caps string) string {
		return "host                   : x\nnr_cpus                : 4\nhw_caps                : 178bf3ff:76da3203\nvirt_caps              : " + caps +
			"\ntotal_memory           : " + total + "\nxen_major              : 4\nxen_minor              : 20\nxen_version            : 4.20.3\nxen_caps               : xen-3.0-x86_64\n"
	}
	const list = "Name                                        ID   Mem VCPUs\tState\tTime(s)\nDomain-0                                     0   448     1     r-----       9.5\n"
	a, err := parseAbout(info("1512", "pv hvm hap"), list)
	if err != nil || a.version != "4.20.3" || !strings.Contains(a.cpu, "4.20 shows: 178bf3ff:76da3203") || a.room != (fleet.Resources{CPUs: 4, MemoryBytes: 980 * mebi}) {
		t.Errorf("it is %+v: %v", a, err)
	}
	for why, c := range map[string][2]string{
		"no hardware virtualization": {info("1512", "pv"), list},
		"add dom0_mem=":              {info("600", "pv hvm"), list},
		"how large":                  {info("much", "hvm"), list},
		"which Xen":                  {"virt_caps : hvm\n", list},
		"the first domain":           {info("1512", "hvm"), ""},
	} {
		if _, err := parseAbout(c[0], c[1]); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// The classes' weights are in the ratios of control groups', and an owner takes them from all guests alike.
func TestShares(t *testing.T) {
	var s shares
	begin := func(id fleet.GuestID, class fleet.Class, cpus int, most float64) share {
		t.Helper()
		got, err := s.beginGuest(fleet.Task{Guest: fleet.Guest{ID: id, Need: fleet.Resources{CPUs: cpus}}, Job: fleet.Job{Spec: fleet.JobSpec{Class: class, Cap: most}}})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, c := range []struct {
		id    fleet.GuestID
		class fleet.Class
		cpus  int
		most  float64
		want  share
	}{
		{"j1g0", fleet.Gold, 1, 0, share{512, 0}}, {"j1g1", "", 2, 0.5, share{512, 100}}, {"j1g2", fleet.Bronze, 1, 0.001, share{128, 1}},
		{"j1g3", fleet.Normal, 1 << 20, 0, share{mostWeight, 0}},
	} {
		if got := begin(c.id, c.class, c.cpus, c.most); got != c.want {
			t.Errorf("%s gets %+v", c.id, got)
		}
	}
	s.forget("j1g3")
	s.low, s.most = true, 2
	for id, want := range map[fleet.GuestID]share{"j1g0": {leastWeight, 50}, "j1g1": {leastWeight, 100}, "j1g2": {leastWeight, 1}} {
		if got, err := s.of(id); err != nil || got != want {
			t.Errorf("beside an owner %s gets %+v: %v", id, got, err)
		}
	}
	if s.most = 0; begin("j1g0", fleet.Gold, 1, 0) != (share{leastWeight, 0}) {
		t.Error("an owner who sets no limit sets one")
	}
	if _, err := s.beginGuest(fleet.Task{Guest: fleet.Guest{ID: "j2g0"}, Job: fleet.Job{Spec: fleet.JobSpec{Class: "silver"}}}); err == nil {
		t.Error("a class that there is not has a share")
	}
}

func TestKept(t *testing.T) {
	for _, c := range []struct{ most, has, free, want int64 }{{800, 800, 400, 500}, {800, 500, 100, 500}, {800, 500, 0, 600}, {800, 800, 50, 800}, {800, 100, 400, 100}, {800, 790, 0, 800}} {
		if got := kept(c.most, c.has, c.free); got != c.want {
			t.Errorf("%+v keeps %d", c, got)
		}
	}
}
