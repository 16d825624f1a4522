package criu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

func TestSuits(t *testing.T) {
	for _, c := range []struct{ version, kernel, says string }{
		{"4.2.1", "6.18.44-fc", ""},
		{"4.2", "6.16.0", ""},
		{"4.1.1", "6.15.9", ""},
		{"3.19", "6.12.0+deb13-amd64", ""},
		{"10.0", "7.0-rc1", ""},
		{"4.1", "6.16-rc1", "TCP connections"},
		{"3.17.1", "6.18", "half its speed"},
		{"3.17.1", "6.1", "half its speed"},
		{"3.4", "6.1", "half its speed"},
		{"", "6.1", "not a version"},
		{"new", "6.1", "not a version"},
		{"4.", "6.1", "not a version"},
		{"99999999999999999999.1", "6.1", "not a version"},
	} {
		err := suits(c.version, c.kernel)
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "doctor --fix")) {
			t.Errorf("version %q for Linux %s: %v", c.version, c.kernel, err)
		}
	}
}

// TestTooOld: of programs that claim to be CRIU, only a version that works is used.
func TestTooOld(t *testing.T) {
	for said, want := range map[string]string{
		"Version: 3.16.1": "half its speed", "Version: 4.2.7\nGitID: v4.2": "", "nothing": "does not say its version", "": "does not say",
	} {
		path := filepath.Join(t.TempDir(), "criu")
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+said+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		version, err := versionOf(t.Context(), path)
		if err == nil {
			err = suits(version, "6.12.0")
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", said, err)
		}
	}
	if _, err := versionOf(t.Context(), "/bin/false"); err == nil {
		t.Error("a program that fails has a version")
	}
}

func TestExplain(t *testing.T) {
	for _, c := range []struct{ log, first, want string }{
		{"(00.1) Warn  (criu/x.c:1): odd\n(00.012) Error (criu/files-reg.c:1800): Can't lookup mount=24 for fd=10 path=/dev/null\n(00.013) Error (criu/cr-dump.c:1): Dumping FAILED.", "", "/dev/null open, as descriptor 10, which lies outside"},
		{"     1: Error (criu/files-reg.c:2400): Can't open file /usr/lib/libmpi.so on restore: No such file or directory", "", "/usr/lib/libmpi.so cannot be opened here"},
		{"     1: Error (criu/files-reg.c:2400): File /out/job.txt has bad size 12 (expect 10)", "", "/out/job.txt has changed"},
		{"(00.2)      1: Warn  (criu/x.c:1): odd\n(00.241)pie: 24: Error (criu/pie/restorer.c:1883): Can't restore 0x7fc0a3866000 mapping with 0xffffffffffffffea\n(00.3) Error (criu/cr-restore.c:2324): Restoring FAILED.", "", "this host's kernel does not know"},
		{"(00.2) Error (criu/memfd.c:486): Cannot apply seals on memfd: Invalid argument\n(00.3) Error (criu/cr-restore.c:2324): Restoring FAILED.", "", "seal that this host's kernel does not know"},
		{"(00.2) Error (criu/memfd.c:486): Cannot apply seals on memfd: Device or resource busy", "", "criu says: Cannot apply seals"},
		{"(00.241) pie: 24: Error (criu/pie/restorer.c:226): Can't setgroups([1 gids]): -1\nError (criu/cr-restore.c:2324): Restoring FAILED.", "", "criu says: Can't setgroups"},
		{"Error (criu/arch/x86/cpu.c:300): CPU xfeatures has unsupported bits (0xe0)", "", "processor lacks"},
		{"Error (criu/image.c:40): Can't write image: No space left on device", "", "no room"},
		{"", "tee: 65536: Operation not permitted", "fs.pipe-max-size=4194304"},
		{"Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n", "Can't dump file 5 of that type [20666] (chr 231:192)", "numbers 231:192"},
		{"Error (criu/mount.c:1): No mapping for 72:./out mountpoint", "", "/out is mounted in it from outside"},
		{"Error (criu/sk-unix.c:1): External socket is used. Consider using --ext-unix-sk option.", "", "Unix socket"},
		{"Error (criu/sk-inet.c:60): Unsupported proto 132 for socket 1f", "", "SCTP"},
		{"Error (criu/sockets.c:1): BUG! Unknown socket collected (family 21)", "", "RDS"},
		{"Error (criu/sk-unix.c:506): unix: Non-empty write queue on an in-flight socket 0x1f", "", "a Unix connection with data in it waits"},
		{"Error (criu/sk-queue.c:120): skqueue: Control messages in queue, not supported", "", "credentials"},
		{"Error (criu/sk-netlink.c:90): netlink: The netlink socket 0x6df9e is bound to groups but not to portid", "", "let the program bind it"},
		{"BUG at criu/mem.c:46", "", "criu says: criu/mem.c:46"},
		{"/opt/x/ld.so: cannot execute\nmore", "", "criu says: /opt/x/ld.so: cannot execute"},
		{"", "", "does not say why"},
		{"\x00\x1b[31mError (a): \x1b]0;x\a", "", "?"},
	} {
		if got, _ := explain([]byte(c.log), c.first); !strings.Contains(got, c.want) {
			t.Errorf("%q, %q: %q", c.log, c.first, got)
		}
	}
}

func FuzzExplain(f *testing.F) {
	f.Add([]byte("(00.012) Error (criu/files-reg.c:1800): Can't dump ghost file /x of 99999999999999999999 size"), "x")
	f.Add([]byte("Error (criu/sockets.c:1): Unsupported proto 99999999999999999999 for socket"), "Error")
	for _, r := range rules {
		f.Add([]byte("Error (criu/x.c:1): "+r.line), r.line)
	}
	f.Fuzz(func(t *testing.T, log []byte, first string) {
		got, _ := explain(log, first)
		if got == "" || strings.ContainsAny(got, "\n\x1b\x00") {
			t.Errorf("%q", got)
		}
	})
}

func FuzzParseMapping(f *testing.F) {
	f.Add("7ff3d28f4000-7ff3d28f5000 r--s 00000000 00:4e 12                        /dev/infiniband/uverbs0")
	f.Add("00400000-00401000 r-xp 00000000 fe:00 1234 /tmp/a  b (deleted)")
	f.Add("- a b c d")
	f.Fuzz(func(t *testing.T, line string) {
		if m, ok := parseMapping(line); ok && (m.end <= m.start || len(m.path) > len(line)) {
			t.Errorf("%q: %+v", line, m)
		}
	})
}

// TestOwnMappings: the parser finds this process's mappings.
func TestOwnMappings(t *testing.T) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		m, ok := parseMapping(strings.TrimSuffix(line, "\n"))
		if !ok || m.foreign() {
			t.Errorf("%q: %+v", line, m)
		}
		if m.path == exe {
			found++
		}
	}
	if found == 0 {
		t.Errorf("%s is not in\n%s", exe, text)
	}
}

// TestInstallerGivesUp: without an archive the installer says so and leaves nothing, not even of
// a killed run. If everything is installed it does nothing.
func TestInstallerGivesUp(t *testing.T) {
	testkit.Root(t, "apt-get")
	dir := t.TempDir()
	to := filepath.Join(dir, "pagurus-criu")
	if err := os.Mkdir(to+".new.killed", 0o755); err != nil {
		t.Fatal(err)
	}
	quick := filepath.Join(t.TempDir(), "apt.conf")
	if err := os.WriteFile(quick, []byte("Acquire::Retries \"0\";\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", Installer())
	// The path has no CRIU of the system, and the proxy's port is closed.
	cmd.Env = append(os.Environ(), "PAGURUS_CRIU_PREFIX="+to, "APT_CONFIG="+quick, "http_proxy=http://127.0.0.1:9", "https_proxy=http://127.0.0.1:9")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the package lists of Debian") {
		t.Errorf("%v: %s", err, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	find(t)
	if out, err := exec.Command("bash", "-c", Installer()).CombinedOutput(); err != nil || !strings.Contains(string(out), "is version") {
		t.Errorf("%v: %s", err, out)
	}
	if !strings.Contains(Installer(), prefix) {
		t.Errorf("the installer does not know %s", prefix)
	}
}
