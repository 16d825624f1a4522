package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pagurus/cmd/pagurus/labnet"
)

func someMachines() lab {
	m := newMachines()
	m.Suites, m.CPUs, m.Seed, m.Packages = []string{"trixie", "bookworm"}, 2, "seed", "/some/dist"
	m.Images = map[string]string{"trixie": "/images/trixie-1", "bookworm": "/images/bookworm-1"}
	return lab{Hosts: 3, Machines: m, Accelerator: "tcg", MemoryPerHost: 1 << 30}
}

func TestPackagesThatMachinesInstall(t *testing.T) {
	dir := t.TempDir()
	if _, err := packagesIn(dir); err == nil || !strings.Contains(err.Error(), "make packages") {
		t.Errorf("none: %v", err)
	}
	want := []string{filepath.Join(dir, "pagurus_1_amd64.deb"), filepath.Join(dir, "pagurus-controller_1_amd64.deb")}
	for _, name := range want {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := packagesIn(dir); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pagurus_2_amd64.deb"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := packagesIn(dir); err == nil || !strings.Contains(err.Error(), "2 files") {
		t.Errorf("two versions: %v", err)
	}
}

// What a package depends on or recommends is in the image, but not Pagurus itself.
func TestNeedsOfAPackage(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not on this machine")
	}
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(filepath.Join(dir, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "Package: x\nVersion: 1\nArchitecture: amd64\nMaintainer: m <m@localhost>\nDescription: d\nDepends: libc6 (>= 2), pagurus (= 1), tar\nRecommends: runc | crun, zstd\n"
	if err := os.WriteFile(filepath.Join(dir, "DEBIAN/control"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", dir, dir+".deb").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := needs(t.Context(), dir+".deb")
	if want := []string{"libc6", "tar", "runc", "zstd"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v, not %q", got, err, want)
	}
}

func TestMachinesThatAreRefused(t *testing.T) {
	never := func(string) bool { return false }
	if err := someMachines().checkMachines(never); err != nil {
		t.Errorf("good ones: %v", err)
	}
	for want, change := range map[string]func(*lab){
		"trixie and bookworm":  func(l *lab) { l.Machines.Suites = []string{"sid"} },
		"must be between":      func(l *lab) { l.Hosts = labnet.MaxHosts },
		"a suite, one CPU":     func(l *lab) { l.Machines.CPUs = 0 },
		"1 GiB or more":        func(l *lab) { l.Machines.MemoryBytes = 1 << 20 },
		"a suite, one CPU or ": func(l *lab) { l.Machines.Suites = nil },
	} {
		l := someMachines()
		change(&l)
		if err := l.checkMachines(never); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	asked := func(flag string) bool { return flag == cpusPerHostFlag }
	if err := someMachines().checkMachines(asked); err == nil || !strings.Contains(err.Error(), "--"+machineCPUsFlag) {
		t.Errorf("flags of other labs: %v", err)
	}
	l := lab{Hosts: 2}
	if err := l.checkNamespaces(func(flag string) bool { return flag == suiteFlag }, nil); err == nil || !strings.Contains(err.Error(), "--"+machinesFlag) {
		t.Errorf("flags of machines: %v", err)
	}
}

// Suites go round; only the head sees this machine's images; no two machines are alike.
func TestMachinesOfALab(t *testing.T) {
	l := someMachines()
	seen := map[string]bool{}
	for n, suite := range map[int]string{1: "trixie", 2: "bookworm", 3: "trixie"} {
		m := l.machine(n)
		if m.Image.Folder != l.Machines.Images[suite] {
			t.Errorf("host %d begins as %s", n, m.Image.Folder)
		}
		if images := len(m.Shares) == 2; images != (n == head) || m.Shares[0].Path != "/some/dist" {
			t.Errorf("host %d is shown %v", n, m.Shares)
		}
		for _, own := range []string{m.MAC, m.Dir, m.Run, m.LAN.String(), m.Control.String(), m.ID("seed")} {
			if seen[own] {
				t.Errorf("host %d is not alone with %s", n, own)
			}
			seen[own] = true
		}
	}
	if all := l.daemons(); len(all) != 5 || all[3].Namespace != l.namespace(3) {
		t.Errorf("its processes are %v", all)
	}
	if l.endpoint() != "198.18.0.1:7461" || l.member(2) != "host2" || l.member(l.here()) != hereName {
		t.Errorf("its head is %s, its hosts %s and %s", l.endpoint(), l.member(2), l.member(l.here()))
	}
}

func TestAnotherLabOfMachines(t *testing.T) {
	asked := func(flag string) bool { return flag == machinesFlag || flag == suiteFlag }
	if l := someMachines(); l.otherwise(someMachines(), asked) {
		t.Error("the same is another")
	}
	other := someMachines()
	other.Machines.Suites = []string{"trixie"}
	if l := someMachines(); !l.otherwise(other, asked) || !l.otherwise(lab{Hosts: 3}, asked) {
		t.Error("another is the same")
	}
	l := lab{Hosts: 3}
	if !l.otherwise(someMachines(), func(flag string) bool { return flag == hostsFlag }) {
		t.Error("namespaces are asked for, and machines do")
	}
}

// When one host fails the others are told to end, and its error is the answer.
func TestEachHostEndsWithTheFirstError(t *testing.T) {
	l, bad := lab{Hosts: 3}, errors.New("host 2 is bad")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	err := l.eachHost(ctx, func(ctx context.Context, n int) error {
		if n == 2 {
			return bad
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, bad) || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
	if err := l.eachHost(ctx, func(context.Context, int) error { return nil }); err != nil {
		t.Errorf("all is well, and it says %v", err)
	}
}
