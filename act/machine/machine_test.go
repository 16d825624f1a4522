package machine

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

func TestFactsOfThisMachine(t *testing.T) {
	m, err := Facts()
	if err != nil {
		t.Fatal(err)
	}
	if m.ID == "" || m.Kernel == "" || len(m.CPUs) < 1 || m.MemoryBytes < 1<<20 {
		t.Errorf("facts %+v", m)
	}
	again, err := Facts()
	if err != nil || !reflect.DeepEqual(again, m) {
		t.Errorf("first %+v, then %+v, %v", m, again, err)
	}
}

func TestIdentityFallsBack(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	saved := idFiles
	defer func() { idFiles = saved }()
	empty, first, own := write("empty", "\n"), write("first", "uninitialized\n"), write("own", "abc\n")
	idFiles = []string{filepath.Join(dir, "none"), empty, first, own}
	if id, err := ID(); id != "abc" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
	idFiles = []string{empty}
	if id, err := ID(); err == nil {
		t.Errorf("no identity is %q", id)
	}
}

// Of a machine with IPv6 alone that is a global address, also where a bridge has an address of IPv4 that leads nowhere.
func TestAddressOfIPv6Alone(t *testing.T) {
	testkit.Root(t)
	h := testkit.Hosts(t, 1)[0]
	h.OnlyIPv6()
	h.Must(func() error {
		if got := address(); got != h.Six() {
			t.Errorf("without a route it is %s, not %s", got, h.Six())
		}
		if !Has(h.Six()) || Has(h.Addr) {
			t.Error("it does not know which addresses it has")
		}
		return nil
	})
	h.Run("ip", "link", "add", "docker0", "type", "bridge")
	h.Run("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
	h.Run("ip", "route", "add", "default", "via", "2001:db8::fe")
	h.Must(func() error {
		if got := address(); got != h.Six() {
			t.Errorf("beside a bridge with IPv4 it is %s, not %s", got, h.Six())
		}
		if got := Towards("[2001:db8::9]:7461"); got != h.Six().String() {
			t.Errorf("towards another it is %q", got)
		}
		if got := Towards("[fe80::1%" + testkit.UplinkName + "]:7461"); strings.HasPrefix(got, "fe80") {
			t.Errorf("an address of one link is called this machine's: %s", got)
		}
		return nil
	})
}

func TestAHostHasTheAddressOfItsNetwork(t *testing.T) {
	testkit.Root(t)
	for _, h := range testkit.Hosts(t, 1) {
		h.Must(func() error {
			m, err := Facts()
			if !m.Address.IsValid() || m.Address.IsLoopback() {
				t.Errorf("facts %+v", m)
			}
			return err
		})
	}
}

// without simulates a machine without everything that can be installed.
func without(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	t.Setenv("PATH", bin)
	folders, fs, keys := systemFolders, fileSystems, keyring
	systemFolders, fileSystems, keyring = nil, filepath.Join(bin, "*.so"), filepath.Join(bin, "keys")
	t.Cleanup(func() { systemFolders, fileSystems, keyring = folders, fs, keys })
	return bin
}

func TestWhatIsMissingHasACommand(t *testing.T) {
	without(t)
	var missing []string
	for _, f := range Check(t.Context(), t.TempDir()) {
		if !f.OK && strings.Contains(f.Fix, "apt-get") {
			missing = append(missing, f.Fix)
		}
		if f.Detail == "" || f.Name == "" {
			t.Errorf("says nothing: %+v", f)
		}
	}
	all := strings.Join(missing, "\n")
	for _, pkg := range []string{
		"qemu-system-x86", "iproute2", "mmdebstrap", "squashfs-tools", "zstd", "xz-utils",
		"nfs-ganesha nfs-ganesha-vfs", "nfs-ganesha-vfs", "debian-archive-keyring",
	} {
		if !strings.Contains(all, "--no-install-recommends "+pkg) {
			t.Errorf("nothing installs %s", pkg)
		}
	}
}

func TestNoServiceIsStartedWhileOneIsInstalled(t *testing.T) {
	saved := policy
	defer func() { policy = saved }()
	policy = filepath.Join(t.TempDir(), "policy-rc.d")
	sh := func(command string) error { return exec.Command("sh", "-c", command).Run() }
	if err := sh(unstarted("{ " + policy + "; test $? = 101; }")); err != nil {
		t.Errorf("services may be started: %v", err)
	}
	if err := sh(unstarted("false")); err == nil {
		t.Error("what fails within does not fail")
	}
	if err := sh(unstarted("sh -c 'kill -TERM $PPID; sleep 0.1'")); err == nil {
		t.Error("what is ended within does not fail")
	}
	if _, err := os.Stat(policy); err == nil {
		t.Error("the policy stays")
	}
	if err := os.WriteFile(policy, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sh(unstarted(policy)); err != nil {
		t.Errorf("the machine's own policy did not hold: %v", err)
	}
	if text, _ := os.ReadFile(policy); string(text) != "#!/bin/sh\n" {
		t.Errorf("the machine's own policy is now %q", text)
	}
}

func TestFirewallOnBridges(t *testing.T) {
	const docker = `-P FORWARD DROP
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
`
	for name, c := range map[string]struct {
		rules string
		ok    bool
	}{
		"docker":       {docker, false},
		"mended":       {strings.Replace(docker, "-A", "-A FORWARD -i pg+ -j ACCEPT\n-A", 1), true},
		"open":         {"-P FORWARD ACCEPT\n-A FORWARD -i eth0 -j DROP\n", true},
		"other chains": {"-P INPUT DROP\n-P FORWARD ACCEPT\n", true},
		"":             {"", true},
	} {
		if got := passes(c.rules); got != c.ok {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestFirewallOfNftables(t *testing.T) {
	const rules = `table ip filter {
	chain INPUT {
		type filter hook input priority filter; policy drop;
	}

	chain FORWARD {
		type filter hook forward priority filter; policy drop;
		counter packets 0 bytes 0 jump DOCKER-USER
	}
}
table ip6 filter {
	chain FORWARD {
		type filter hook forward priority filter; policy drop;
	}
}
table inet mine {
	set s {
		type ipv4_addr
	}

	chain forward {
		type filter hook forward priority filter; policy drop;
		iifname "lo" accept
	}

	chain later {
		type filter hook forward priority filter + 10; policy accept;
	}
}
table inet mended {
	chain forward {
		type filter hook forward priority filter; policy drop;
		iifname "pg*" counter packets 3 bytes 252 accept
	}
}
`
	if got := dropping(rules); !slices.Equal(got, []string{"ip filter FORWARD", "inet mine forward"}) {
		t.Errorf("dropping are %q", got)
	}
}

func TestQEMUHasToBeNewEnough(t *testing.T) {
	bin := without(t)
	for said, ok := range map[string]bool{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)": true,
		"QEMU emulator version 10.0.2":                       true,
		"QEMU emulator version 6.2.0 (Debian 1:6.2)":         false,
		"QEMU emulator version 7.1.0":                        false,
		"something else":                                     false,
	} {
		script := "#!/bin/sh\necho '" + said + "'\n"
		if err := os.WriteFile(filepath.Join(bin, "qemu-system-x86_64"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if f := checkQEMU(t.Context()); f.OK != ok {
			t.Errorf("%q: %+v", said, f)
		}
	}
}

func TestControlGroupsOfBothVersions(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		ok    bool
		says  string
	}{
		"two":          {map[string]string{"cgroup.controllers": "cpuset cpu io memory pids\n"}, true, "version 2"},
		"two, no cpu":  {map[string]string{"cgroup.controllers": "hugetlb\n"}, false, `no controller "cpu"`},
		"one":          {map[string]string{"cgroups": "cpu\t1\t2\t1\ncpuacct\t2\t2\t1\n", "cpu/x": "", "cpuacct/x": ""}, true, "version 1"},
		"one, unmount": {map[string]string{"cgroups": "cpu\t1\t2\t1\ncpuacct\t2\t2\t1\n", "cpu/x": ""}, false, "no cpuacct mounted"},
		"none":         {nil, false, "has none"},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if f := checkGroups(dir, filepath.Join(dir, "cgroups")); f.OK != c.ok || !strings.Contains(f.Detail, c.says) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestDiskOfAFolderThatIsNotThereYet(t *testing.T) {
	if f := checkDisk(filepath.Join(t.TempDir(), "a", "b")); !strings.Contains(f.Detail, "GiB free") {
		t.Errorf("%+v", f)
	}
}

// The test machine has all requirements, because of scripts/setup.
func TestThisMachineIsSetUp(t *testing.T) {
	testkit.Root(t)
	for _, f := range Check(t.Context(), "/var/lib/pagurus") {
		if f.Needed && !f.OK {
			t.Errorf("%+v", f)
		}
	}
}

func TestMendRunsEachCommandOnce(t *testing.T) {
	testkit.Root(t)
	count := filepath.Join(t.TempDir(), "count")
	once := "echo x >>" + count
	var out bytes.Buffer
	err := Mend(t.Context(), []Finding{
		{Name: "a", Fix: once}, {Name: "b", Fix: once}, {Name: "c", OK: true, Fix: "false"},
		{Name: "d"}, {Name: "e", Fix: "echo sorry >&2; exit 3"}, {Name: "f", Fix: "echo y >>" + count},
	}, &out)
	if err == nil || !strings.Contains(err.Error(), "fix e: exit status 3") || strings.Contains(err.Error(), "fix c") {
		t.Errorf("error %v", err)
	}
	b, err := os.ReadFile(count)
	if got := strings.Fields(string(b)); err != nil || !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("ran %v, %v", got, err)
	}
	if !strings.Contains(out.String(), "# "+once) || !strings.Contains(out.String(), "sorry") {
		t.Errorf("showed %q", out.String())
	}
}
