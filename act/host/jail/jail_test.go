package jail

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

func TestMain(m *testing.M) {
	if become := Shims[os.Args[0]]; become != nil {
		fmt.Fprintln(os.Stderr, become(os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// testUID is nobody's.
const testUID = 2_100_000_900

// shell is a jail in which a script runs, with a folder of its own.
func shell(t *testing.T, script string) Jail {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "pagurus-jail-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	folder := filepath.Join(root, "own")
	for path, owner := range map[string]int{folder: testUID, filepath.Join(root, "other"): testUID + 1} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	files, err := Libraries(t.Context(), "/bin/dash")
	if err != nil {
		t.Fatal(err)
	}
	null, err := DeviceAt("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	return Jail{
		UID: testUID, GID: testUID, Root: root, Hostname: "inside", Files: append(files, File{Path: folder, Writable: true}), Devices: []Device{null}, Folder: folder,
		Program: []string{"/bin/dash", "-c", script}, FileBytes: 4096, OpenFiles: 64,
	}
}

// runs runs a jail to its end and returns what it says.
func runs(t *testing.T, j Jail, files ...*os.File) string {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	first, err := Start("/proc/self/exe", j, log, files...)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Kill()
	if err := first.Enter(); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, 20*time.Second, "the program has ended", first.Gone)
	text, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSees: a program sees its own files, itself, and nothing else.
func TestSees(t *testing.T) {
	testkit.Root(t)
	j := shell(t, `echo files: /* /tmp/*/* /dev/* /etc/*
echo processes: /proc/[0-9]* pid $$
read name </proc/self/task/1/comm && echo comm $name
for f in /etc/shadow /etc/passwd /proc/kcore /proc/sys/kernel/hostname /proc/mounts /sys/kernel; do [ -e $f ] && echo has $f; done
echo x >/dev/null && echo null works
(echo x >/made) 2>/dev/null && echo writes to the root
(echo x >/bin/dash) 2>/dev/null && echo writes to its program
echo kept >file && read back <file && echo own file $back
umask`)
	said := runs(t, j)
	for _, want := range []string{
		"files: /bin /dev /etc /lib /lib64 /proc /tmp " + j.Folder + " /dev/null /etc/ld.so.cache\n", "processes: /proc/1 pid 1\n", "comm dash\n", "null works\n", "own file kept\n", "0077\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	for _, bad := range []string{"writes to", "has /etc", "has /proc/kcore", "has /proc/sys", "has /sys"} {
		if strings.Contains(said, bad) {
			t.Errorf("it says %q", bad)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(j.Folder, "file"), &st); err != nil || st.Uid != testUID || st.Gid != testUID || st.Mode&0o777 != 0o600 {
		t.Errorf("the host sees its file as %+v: %v", st, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), j.Root) {
		t.Errorf("the host sees the jail's mounts: %v", err)
	}
}

// TestRights: the kernel says that a program has none, and is in namespaces of its own.
func TestRights(t *testing.T) {
	testkit.Root(t)
	j := shell(t, "echo waits; read line <pipe")
	if err := unix.Mkfifo(filepath.Join(j.Folder, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(j.Folder, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	first, err := Start("/proc/self/exe", j, log)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Kill()
	if now, err := os.ReadFile(log.Name()); err != nil || len(now) > 0 {
		t.Errorf("before it is told to enter it says %q: %v", now, err)
	}
	if err := first.Enter(); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, 20*time.Second, "it runs", func() bool {
		text, _ := os.ReadFile(log.Name())
		return strings.Contains(string(text), "waits")
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", first.PID))
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprint(testUID)
	for _, want := range []string{
		"\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nCapInh:\t0000000000000000\n", "\nCapBnd:\t0000000000000000\n", "\nCapAmb:\t0000000000000000\n",
		"\nNoNewPrivs:\t1\n", "\nUid:\t" + strings.Join(slices.Repeat([]string{id}, 4), "\t") + "\n", "\nGid:\t" + strings.Join(slices.Repeat([]string{id}, 4), "\t") + "\n", "\nGroups:\t \n",
	} {
		if !strings.Contains(string(status), want) {
			t.Errorf("its status lacks %q: %s", want, status)
		}
	}
	for _, kind := range []string{"mnt", "pid", "ipc", "uts", "net"} {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", first.PID, kind))
		ours, wrong := os.Readlink("/proc/self/ns/" + kind)
		if err != nil || wrong != nil || its == ours {
			t.Errorf("it is in our namespace %s: %v, %v", its, err, wrong)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", first.PID))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Max file size": "4096", "Max open files": "64", "Max core file size": "1"} {
		_, after, _ := strings.Cut(string(limits), name)
		if f := strings.Fields(after); len(f) < 2 || f[0] != want || f[1] != want {
			t.Errorf("%s is not %s: %s", name, want, limits)
		}
	}
}

// TestGives: a program has the descriptors that it is given, at their numbers, and no others. A
// file that it writes stays small, which does not end it.
func TestGives(t *testing.T) {
	testkit.Root(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	said := runs(t, shell(t, `echo given >&3
for f in /proc/self/fd/*; do echo open $f; done
i=0; while [ $i -lt 600 ]; do echo sixteen bytes.. ; i=$((i+1)); done >file 2>/dev/null
echo still here`), w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 16)
	if n, err := r.Read(text); err != nil || string(text[:n]) != "given\n" {
		t.Errorf("the pipe has %q: %v", text, err)
	}
	for _, n := range []int{4, 5, 6, 7} {
		if strings.Contains(said, fmt.Sprintf("open /proc/self/fd/%d\n", n)) && n > 4 {
			t.Errorf("descriptor %d is open: %s", n, said)
		}
	}
	if !strings.Contains(said, "open /proc/self/fd/3\n") || !strings.Contains(said, "still here\n") {
		t.Errorf("it says %s", said)
	}
}

// TestNotEntered: a first process ends with the process that started it, and a jail that cannot be made says why and
// leaves nothing.
func TestNotEntered(t *testing.T) {
	testkit.Root(t)
	j := shell(t, "echo wrong")
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	first, err := Start("/proc/self/exe", j, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.release(); err != nil { // as when it has ended
		t.Error(err)
	}
	testkit.Until(t, 20*time.Second, "it has ended", first.Gone)
	for what, spoil := range map[string]func(*Jail){
		"a missing file":    func(j *Jail) { j.Files = append(j.Files, File{Path: "/no/such/file"}) },
		"a missing program": func(j *Jail) { j.Program[0] = "/bin/none" },
		"no such folder":    func(j *Jail) { j.Folder = "/none" },
		"root":              func(j *Jail) { j.UID = 0 },
	} {
		j := shell(t, "echo wrong")
		spoil(&j)
		first, err := Start("/proc/self/exe", j, log)
		if err == nil {
			err = first.Enter()
			testkit.Until(t, 20*time.Second, "it has ended", first.Gone)
			first.Kill()
		}
		if err == nil {
			t.Errorf("%s: a program runs", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	if text, err := os.ReadFile(log.Name()); err != nil || strings.Contains(string(text), "wrong") {
		t.Errorf("it ran: %q, %v", text, err)
	}
}

// TestLibraries: what a program is loaded from is found, whatever it is.
func TestLibraries(t *testing.T) {
	files, err := Libraries(t.Context(), "/bin/dash")
	has := func(part string) bool {
		return slices.ContainsFunc(files, func(f File) bool { return strings.Contains(f.Path, part) && f.Runs && !f.Writable })
	}
	if err != nil || !has("/bin/dash") || !has("/libc.so") || !has("/ld-linux") {
		t.Errorf("dash is loaded from %+v: %v", files, err)
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho started >&2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{script, filepath.Join(dir, "none"), dir} {
		if files, err := Libraries(t.Context(), bad); err == nil || strings.Contains(err.Error(), "started") {
			t.Errorf("%s is loaded from %+v: %v", bad, files, err)
		}
	}
	static := filepath.Join(dir, "static")
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\nfunc main() { select {} }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", static, filepath.Join(dir, "main.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if files, err := Libraries(t.Context(), static); err != nil || len(files) != 1 || files[0].Path != static {
		t.Errorf("a static program is loaded from %+v: %v", files, err)
	}
}

func TestListed(t *testing.T) {
	const text = "\tlinux-vdso.so.1 (0x00007f39e98e3000)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f39e987d000)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f39e98e5000)\n"
	if got, err := listed(text); err != nil || !slices.Equal(got, []string{"/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"}) {
		t.Errorf("listed are %v: %v", got, err)
	}
	for _, bad := range []string{"", "\tstatically linked\n", text + "\tlibno.so.3 => not found\n"} {
		if got, err := listed(bad); err == nil {
			t.Errorf("%q lists %v", bad, got)
		}
	}
}

// TestTry: a jail is tried here, and nothing is left; a user who is root cannot be jailed.
func TestTry(t *testing.T) {
	testkit.Root(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Try(t.Context(), "/proc/self/exe", dir, 2_099_999_998); err != nil {
		t.Error(err)
	}
	if err := Try(t.Context(), "/proc/self/exe", t.TempDir(), 0); err == nil || !strings.Contains(err.Error(), "cannot be jailed") {
		t.Errorf("got %v", err)
	}
	if err := Supported(); err != nil {
		t.Error(err)
	}
}
