package labmachine

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func machine(t *testing.T) Machine {
	t.Helper()
	dir := t.TempDir()
	return Machine{
		Name: "host2", Dir: filepath.Join(dir, "disk"), Run: filepath.Join(dir, "run"), Image: Image{Folder: filepath.Join(dir, "image")},
		CPUs: 2, MemoryBytes: 2 << 30, LAN: netip.MustParsePrefix("198.18.0.2/24"), Gateway: netip.MustParseAddr("198.18.0.254"),
		Control: netip.MustParsePrefix("198.19.0.2/24"), MAC: "54:00:12:00:02", Accelerator: "tcg",
		Shares: []Share{{"packages", "/some/dist"}},
	}
}

// after is what follows a word of a command.
func after(command []string, word string) string {
	at := slices.Index(command, word)
	if at < 0 || at+1 == len(command) {
		return ""
	}
	return command[at+1]
}

func TestCommand(t *testing.T) {
	m := machine(t)
	command := m.Command("seed")
	kernel := after(command, "-append")
	for _, want := range []string{"systemd.hostname=host2", "lab.address=198.18.0.2/24", "lab.control=198.19.0.2/24", "lab.gateway=198.18.0.254", "systemd.machine_id=" + m.ID("seed")} {
		if !slices.Contains(strings.Fields(kernel), want) {
			t.Errorf("%s is missing in %s", want, kernel)
		}
	}
	if after(command, "-m") != "2097152K" || after(command, "-smp") != "2" || !strings.HasPrefix(after(command, "-accel"), "tcg") {
		t.Errorf("it is %q", command)
	}
	if share := after(command, "-fsdev"); !strings.Contains(share, "readonly=on") || !strings.HasSuffix(share, "path=/some/dist") {
		t.Errorf("it shares %s", share)
	}
	m.Words = []string{"nohz_full=1", "quiet"}
	if line := after(m.Command("seed"), "-append"); !strings.HasPrefix(line, kernel) || !strings.HasSuffix(line, " nohz_full=1 quiet") {
		t.Errorf("with more words it boots %q", line)
	}
	m.Passing = true
	if command := m.Command("seed"); after(command, "-device") != "intel-iommu,intremap=on,caching-mode=on" ||
		!slices.Contains(command, "igb,bus=passing,netdev=card,mac=5a:54:00:12:00:02") || !strings.Contains(after(command, "-append"), "intel_iommu=on") {
		t.Errorf("with a card to pass through it is %q", command)
	}
	m.Passing, m.Accelerator = false, "kvm"
	if command := m.Command("seed"); after(command, "-accel") != "kvm" || after(command, "-cpu") != "host" || strings.Contains(after(command, "-append"), "rodata") {
		t.Errorf("with KVM it is %q", command)
	}
}

// QEMU loads Xen, and the first domain's kernel and file system as its modules.
func TestXenHost(t *testing.T) {
	m := machine(t)
	m.Image.Xen = true
	command := m.Command("seed")
	modules := strings.Split(after(command, "-initrd"), ",")
	if len(modules) != 2 || !strings.HasPrefix(modules[0], m.Image.kernel()+" root=/dev/vda ") || !strings.Contains(modules[0], " console=hvc0 ") || modules[1] != m.Image.initrd() {
		t.Errorf("its modules are %q", modules)
	}
	if xen := after(command, "-append"); after(command, "-kernel") != m.Image.xen() || !strings.Contains(xen, "dom0_mem=1024M,max:1024M") || after(command, "-cpu") != "max" {
		t.Errorf("it is %q", command)
	}
	plain, xen := Recipe{Suite: "trixie"}, Recipe{Suite: "trixie", Xen: true}
	if plain.digest() == xen.digest() || !strings.HasPrefix(xen.name(), "xen-trixie-") {
		t.Errorf("a Xen host is %s, another machine %s", xen.name(), plain.name())
	}
}

// Identities differ between machines and between labs, and have systemd's form.
func TestID(t *testing.T) {
	m, seen := machine(t), map[string]bool{}
	for _, name := range []string{"host1", "host2"} {
		for _, seed := range []string{"a", "b"} {
			m.Name = name
			id := m.ID(seed)
			if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" || seen[id] {
				t.Errorf("%s of lab %s is %s", name, seed, id)
			}
			seen[id] = true
		}
	}
}

// A kernel whose timer does not tick is known by what it says; on real CPUs a stall is not that.
func TestAStuckMachine(t *testing.T) {
	m := machine(t)
	if m.Stuck() {
		t.Error("one that has said nothing is stuck")
	}
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"[    1.0] Linux\n": false,
		"[   25.161730] rcu: rcu_preempt kthread timer wakeup didn't happen for 5251 jiffies!\n[   25.162169] rcu: \tPossible timer handling issue on cpu=1 timer-softirq=5\n": true,
	} {
		if err := os.WriteFile(m.Console(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := m.Stuck(); got != want {
			t.Errorf("after %q stuck is %v", text, got)
		}
	}
	m.Accelerator = "kvm"
	if m.Stuck() {
		t.Error("with KVM it is stuck")
	}
}

// A command reaches the machine's shell as it was written.
func TestShellKeepsWords(t *testing.T) {
	words := []string{"printf", "%s|", "a b", "it's", "$HOME", `\`, "", "two\nlines"}
	args := machine(t).Shell([]string{"-t"}, words...)
	if !slices.Contains(args, "-t") || args[len(args)-3] != "root@198.19.0.2" || args[len(args)-2] != "--" {
		t.Fatalf("it is %q", args)
	}
	out, err := exec.Command("sh", "-c", args[len(args)-1]).CombinedOutput()
	if want := strings.Join(words[2:], "|") + "|"; err != nil || string(out) != want {
		t.Errorf("a shell reads %q, %v, not %q", out, err, want)
	}
}

// The monitor of a real QEMU, without a machine's disk.
func TestStopAndContinue(t *testing.T) {
	if testing.Short() {
		t.Skip("contract ring: make test")
	}
	m := machine(t)
	if err := os.MkdirAll(m.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	q := exec.Command("qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none", "-qmp", "unix:"+m.monitor()+",server=on,wait=off")
	if err := q.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Process.Kill(); _ = q.Wait() })
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for { // it listens soon
		if c, err := net.Dial("unix", m.monitor()); err == nil {
			_ = c.Close()
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the monitor does not listen")
		}
		time.Sleep(10 * time.Millisecond)
	}
	for range 2 {
		if err := m.Stop(ctx); err != nil || !m.Stopped(ctx) {
			t.Fatalf("stopped: %v, %v", m.Stopped(ctx), err)
		}
		if err := m.Continue(ctx); err != nil || m.Stopped(ctx) {
			t.Fatalf("goes on: %v, %v", !m.Stopped(ctx), err)
		}
	}
	if err := m.ask(ctx, "no-such", nil); err == nil || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("a command that there is not: %v", err)
	}
	m.Run = t.TempDir()
	if m.Stopped(ctx) || m.Stop(ctx) == nil {
		t.Error("a machine without a process is stopped")
	}
}
