package testkit

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"
)

// fine is the last line of a machine in which all tests passed.
const fine = "the tests in this machine passed"

// machineLimit is the time limit of a machine, in seconds.
const machineLimit = "300"

// InMachine runs this package's tests in an emulated machine with a number of CPUs, whose
// kernel has only control groups version 2, and fails if they fail. The package's TestMain
// calls Init there.
func InMachine(t *testing.T, cpus int) {
	t.Helper()
	Root(t, "qemu-system-x86_64", "go")
	console := filepath.Join(t.TempDir(), "console")
	cmd := exec.CommandContext(t.Context(), "timeout", machineLimit, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(cpus), "-m", "256", "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(Image(t, "openmpi"), "vmlinuz"), "-initrd", initrd(t),
		"-append", "console=ttyS0 quiet panic=-1", "-serial", "file:"+console)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	text, err := os.ReadFile(console)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), fine) {
		t.Errorf("the machine says:\n%s", text)
	}
}

// Init is the life of such a machine, whose only program is this test: it runs the tests
// that match, and does not return.
func Init(m *testing.M, tests string) {
	for _, f := range []struct{ kind, at string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"cgroup2", "/sys/fs/cgroup"}} {
		os.MkdirAll(f.at, 0o755)
		if err := unix.Mount(f.kind, f.at, f.kind, 0, ""); err != nil {
			fmt.Println("mount", f.at, err)
		}
	}
	flag.Parse()
	flag.Set("test.run", tests)
	flag.Set("test.v", "true")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		fmt.Println("the machine has no version 2 of control groups:", err)
	} else if m.Run() == 0 {
		fmt.Println(fine)
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// initrd holds this test, statically linked.
func initrd(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	program := filepath.Join(folder, "init")
	build := exec.Command("go", "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test: %v: %s", err, out)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := cpio.NewWriter(&archive)
	for _, e := range []struct {
		name string
		mode cpio.FileMode
		text []byte
	}{
		{"proc", cpio.TypeDir | 0o755, nil}, {"sys", cpio.TypeDir | 0o755, nil}, {"run", cpio.TypeDir | 0o755, nil},
		{"tmp", cpio.TypeDir | 0o777, nil}, {"init", cpio.TypeReg | 0o755, text},
	} {
		if err := w.WriteHeader(&cpio.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "initrd")
	if err := os.WriteFile(path, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
