package qemu

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
)

func TestArgs(t *testing.T) {
	m := machine{
		guest: "j7g2", accelerator: Emulation, cpus: 2, memoryBytes: 512 << 20, kernel: "/i/vmlinuz", initrd: "/r/initrd/x",
		root: `/i,m/"root".img`, mac: "02:70:67:00:07:03", tap: 3,
	}
	const want = `-name guest=j7g2,debug-threads=on
-no-user-config
-nodefaults
-display none
-no-reboot
-machine pc-q35-7.2,sata=off,smbus=off,vmport=off
-accel tcg,thread=multi
-cpu SandyBridge-v1,-x2apic,-tsc-deadline,model-id=QEMU TCG CPU
-smp 2
-m 524288K
-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
-msg timestamp=on
-qmp unix:qmp.sock,server=on,wait=off
-kernel /i/vmlinuz
-initrd /r/initrd/x
-append console=ttyS0 quiet panic=-1 mitigations=off init_on_alloc=0 no_timer_check tsc=reliable random.trust_cpu=on cryptomgr.notests noreplace-smp initcall_blacklist=jent_mod_init,load_system_certificate_list,bpf_tcp_ca_kfunc_init,bpf_dummy_struct_ops_init,trace_eval_init,init_encrypted,crypto_kdf108_init,bert_init
-chardev file,id=console,path=console.log
-device isa-serial,chardev=console
-blockdev {"driver":"raw","file":{"driver":"file","filename":"/i,m/\"root\".img","read-only":true},"node-name":"root","read-only":true}
-device virtio-blk-pci,drive=root
-netdev tap,id=net,fd=3
-device virtio-net-pci,netdev=net,guest_announce=off,mac=02:70:67:00:07:03
-device virtio-serial-pci,id=serial
-chardev socket,id=link,path=link.sock,server=on,wait=off
-device virtserialport,bus=serial.0,chardev=link,name=org.pagurus.link
-object rng-builtin,id=rng
-device virtio-rng-pci,rng=rng
-object iothread,id=hints
-device virtio-balloon-pci,free-page-hint=off,deflate-on-oom=on,iothread=hints
`
	if got := lines(args(m)); got != want {
		t.Errorf("the command line is\n%s\nwant\n%s", got, want)
	}
	m.incoming = true
	target := strings.Replace(want, "free-page-hint=off", "free-page-hint=on", 1) // for guests that began with them
	if got := lines(args(m)); got != target+"-S\n-incoming defer\n" {
		t.Errorf("a target's command line differs by more than what makes it one:\n%s", got)
	}
	m.accelerator, m.uneven, m.memoryBytes = Hardware, true, 1
	got := lines(args(m))
	for _, part := range []string{"-accel kvm\n", "-cpu host\n", "-m 1032K\n"} {
		if !strings.Contains(got, part) {
			t.Errorf("the command line lacks %s", part)
		}
	}
}

// Words of an image come after Pagurus's, none of which an image may have.
func TestArgsOfKernelAndCPU(t *testing.T) {
	m := machine{guest: "j7g2", accelerator: Hardware, cpu: "x86-64-v2", words: "nosmt nox2apic", cpus: 1, memoryBytes: 1, tap: 3}
	for cpu, want := range map[string]string{"": "host", "x86-64-v2": models["x86-64-v2"] + ",enforce", "qemu64,-x2apic": "qemu64,-x2apic", "host,-avx": "host,-avx"} {
		if m.cpu = cpu; cpuModel(m) != want {
			t.Errorf("%q is QEMU's %s", cpu, cpuModel(m))
		}
	}
	m.cpu, m.tuned = "host,-avx", &tunedGuest{Shape: fleet.Shape{CPU: "x86-64-v3"}}
	if cpuModel(m) != "host,-avx" {
		t.Errorf("a shape comes before the guest's own CPU: %s", cpuModel(m))
	}
	m.accelerator, m.tuned = Emulation, nil
	if got := cpuModel(m); got != acceleratorCPU(Emulation) {
		t.Errorf("an emulated guest has %s", got)
	}
	if got := appended(m); got != kernelArgs+" nosmt nox2apic" {
		t.Error(got)
	}
	if m.warm = true; appended(m) != kernelArgs+" nosmt nox2apic pagurus.warm" {
		t.Error(appended(m))
	}
	for word := range strings.FieldsSeq(kernelArgs + " pagurus.warm " + fleet.GuestDeviceWord) {
		if fleet.RefusedKernelWords(word) == "" {
			t.Errorf("an image may have Pagurus's own word %s", word)
		}
	}
}

// A guest that has a device of its host finds it on a port of its own, and is told to load its driver. Its jail has the device and
// may pin the guest's memory; nothing else differs.
func TestArgsOfDevice(t *testing.T) {
	m := machine{guest: "j7g2", accelerator: Emulation, cpus: 1, memoryBytes: 512 << 20, tap: 3}
	without := lines(args(m))
	m.device = &fleet.Device{Address: "0000:01:10.0", Group: "5"}
	want := strings.Replace(without, kernelArgs, kernelArgs+" pagurus.device", 1) + "-device pcie-root-port,id=passed,chassis=1\n-device vfio-pci,bus=passed,host=0000:01:10.0\n"
	if got := lines(args(m)); got != want {
		t.Errorf("the command line is\n%s\nwant\n%s", got, want)
	}
	m.device, m.pair = nil, &pairing{} // what is plugged in later is not in it, so a target is the same that has none
	want = strings.Replace(without, kernelArgs, kernelArgs+" pagurus.device", 1) + "-device pcie-root-port,id=passed,chassis=1\n"
	want = strings.Replace(want, "guest_announce=off,mac=", "guest_announce=off,mac=,failover=on,id=standby", 1)
	if got := lines(args(m)); got != want {
		t.Errorf("with a pair the command line is\n%s\nwant\n%s", got, want)
	}
}

// lines formats an option with its value on a line each.
func lines(args []string) string {
	var out strings.Builder
	for i, a := range args {
		switch {
		case i > 0 && strings.HasPrefix(a, "-"):
			out.WriteString("\n")
		case i > 0:
			out.WriteString(" ")
		}
		out.WriteString(a)
	}
	return out.String() + "\n"
}

// By hand a guest runs as soon as it has arrived, and says itself where it is.
func TestArgsByHand(t *testing.T) {
	all := strings.Join(args(machine{guest: "j1g0", accelerator: Emulation, cpus: 1, memoryBytes: mebi, incoming: true, byHand: true}), " ")
	if !strings.HasSuffix(all, " -incoming defer") || strings.Contains(all, " -S ") || strings.Contains(all, "guest_announce") {
		t.Error(all)
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if _, err := host.ReadRecord[record](dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
	r := record{
		Record: host.Record{Recorded: host.ByUs(), Guest: "g1", Gen: 3, Process: host.Process{PID: 7, Ticks: 8}, StartedAt: time.Unix(5, 0).UTC(), Complete: true, Incoming: "m1", Target: true, Listen: "h:1"},
		Copy:   &copying{Migration: "m2", Listen: "h:2", Begun: true, Limits: fleet.Limits{Rounds: 3}, SuspendedAt: time.Unix(6, 0).UTC()},
	}
	for range 2 {
		if err := host.WriteRecord(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := host.ReadRecord[record](dir)
	if err != nil || *got.Copy != *r.Copy {
		t.Errorf("copy is %+v: %v", got.Copy, err)
	}
	if got.Copy = r.Copy; got != r {
		t.Errorf("read %+v, wrote %+v", got, r)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left %v", files)
	}
	if err := os.WriteFile(filepath.Join(dir, "guest.json"), []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := host.ReadRecord[record](dir); err == nil {
		t.Error("half a record was read")
	}
	if err := host.WriteRecord(filepath.Join(dir, "none"), r); err == nil {
		t.Error("a record was written nowhere")
	}
}

// TestLastWords: a guest's last words are read while it is here, and remembered
// afterwards. Links that QEMU's account put in the console's place are not followed.
func TestLastWords(t *testing.T) {
	g := self(t)
	d := &Driver{}
	if err := d.guests.Add("g1", g, func() {}); err != nil {
		t.Fatal(err)
	}
	for id, why := range map[fleet.GuestID]string{"g1": "of another", "g2": "farewell"} {
		if _, err := d.guests.Remember(id, nil, nil, func(r *fleet.Remains, _ string) { r.Why = why }); err != nil {
			t.Fatal(err)
		}
	}
	console := filepath.Join(g.Dir, consoleLog)
	says := func(id fleet.GuestID, want string) {
		t.Helper()
		if got := d.LastWords(id); got != want {
			t.Errorf("%s said %q, want %q", id, got, want)
		}
	}
	says("g1", "")
	says("g2", "farewell")
	says("g3", "")
	if err := os.WriteFile(console, []byte("no root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	says("g1", "no root")
	if err := os.WriteFile(filepath.Join(g.Dir, ownLog), []byte("no network\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	says("g1", "no network (console: no root)")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(console)
	if err := os.Symlink(secret, console); err != nil {
		t.Fatal(err)
	}
	says("g1", "no network")
	os.Remove(console)
	if err := unix.Mkfifo(console, 0o600); err != nil {
		t.Fatal(err)
	}
	says("g1", "no network")
	close(g.Died)
	says("g1", "of another")
}

// self is a guest whose process is this test.
func self(t *testing.T) *guest {
	st, err := host.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	r := record{Record: host.Record{Guest: "g1", Gen: 2, Complete: true, Process: host.Process{PID: os.Getpid(), Ticks: st.Ticks}}}
	return &guest{Guest: host.NewGuest(t.TempDir(), r), seen: fleet.Running, streaming: newTurn(), parting: func() {}}
}

// TestInspectShortOfFiles: a driver that cannot open files still reports its guests.
func TestInspectShortOfFiles(t *testing.T) {
	g := self(t)
	before, ok := g.inspect(t.Context())
	if !ok || before.ResidentBytes == 0 {
		t.Fatalf("%+v %t", before, ok)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, trouble := host.ReadStat(os.Getpid())
	during, ok := g.inspect(t.Context())
	_, watched := g.Record.Process.Watch()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(trouble, unix.EMFILE) {
		t.Fatalf("nothing was short: %v", trouble)
	}
	if watched == nil || errors.Is(watched, os.ErrNotExist) {
		t.Errorf("a process that runs is said to be gone: %v", watched)
	}
	if before.CPUs = 0; !ok || !reflect.DeepEqual(during, before) {
		t.Errorf("%t %+v, before %+v", ok, during, before)
	}
	g.Record.Process.Ticks++
	if _, ok := g.inspect(t.Context()); ok {
		t.Error("another process of the same number is taken for the guest")
	}
	g.Record.Process = host.Process{PID: 1 << 30, Ticks: 1}
	if _, ok := g.inspect(t.Context()); ok {
		t.Error("a process that never was is taken for the guest")
	}
}

// TestWhyEnded: QEMU's reason, its exit and the guest's console give one sentence.
func TestWhyEnded(t *testing.T) {
	oops := "[    1.0] Kernel panic - not syncing: sysrq triggered crash\r\n[    1.1] Kernel Offset: disabled\n"
	killed, failed := host.Exit{Known: true, Signal: syscall.SIGKILL}, host.Exit{Known: true, Status: 1}
	for _, c := range []struct {
		exit                 host.Exit
		reason, console, log string
		want                 string
	}{
		{host.Exit{Known: true}, "guest-reset", oops, "", "its kernel panicked (Kernel panic - not syncing: sysrq triggered crash)"},
		{host.Exit{}, "", oops, "", "its kernel panicked (Kernel panic - not syncing: sysrq triggered crash)"},
		{killed, "", oops, "", "QEMU was killed by SIGKILL"},
		{host.Exit{Known: true}, "guest-reset", "Power\n", "", "it reset itself, as a kernel does that panics, or that a triple fault stops"},
		{host.Exit{Known: true}, "guest-shutdown", oops, "", "it switched itself off"},
		{killed, "", "", "old words", "QEMU was killed by SIGKILL"},
		{failed, "", "", "no memory", "QEMU ended with exit status 1: no memory"},
		{host.Exit{}, "", "", "", "QEMU ended, and its exit status is not known"},
		{host.Exit{Known: true}, "a-new-reason", "", "", "a-new-reason"},
	} {
		if got := whyEnded(c.exit, c.reason, c.console, c.log); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if got := shutdownReason([]byte(`{"guest": true, "reason": "guest-panic"}`)); got != "guest-panic" {
		t.Errorf("QEMU's reason is read as %q", got)
	}
}

// TestVhostNet: a guest under KVM can move between hosts with vhost-net and without, since it
// sees the same device; a file that is no vhost-net is not taken for one.
func TestVhostNet(t *testing.T) {
	m := machine{accelerator: Hardware, mac: "02:70:67:00:07:03", tap: 3}
	without := strings.Join(args(m), " ")
	m.vhost = 5
	with := strings.Join(args(m), " ")
	if !strings.Contains(with, "-netdev tap,id=net,fd=3,vhost=on,vhostfd=5 ") || strings.Contains(without, "vhost") {
		t.Errorf("with it: %s\nwithout: %s", with, without)
	}
	if strings.Replace(with, ",vhost=on,vhostfd=5", "", 1) != without || !strings.Contains(with, "queue_reset=off") {
		t.Error("the two guests differ")
	}
	m.accelerator, m.vhost = Emulation, 0
	if strings.Contains(strings.Join(args(m), " "), "queue_reset") {
		t.Error("emulated guests have changed, too")
	}
	if tryVhost("/dev/null") || tryVhost(filepath.Join(t.TempDir(), "none")) {
		t.Error("what is no vhost-net works")
	}
	if _, err := os.Stat(vhostDevice); err == nil && os.Geteuid() == 0 && !tryVhost(vhostDevice) {
		t.Error("this machine's vhost-net does not work")
	}
}

// What QEMU says depends on what it notices first; what a user reads does not.
func TestATargetThatRefusesIsNamed(t *testing.T) {
	for said, refused := range map[string]bool{
		"Sibling indicated error 1":                true,
		"Unable to write to socket: Broken pipe":   true,
		"Channel error: Connection reset by peer":  true,
		"Unable to write to socket: No route here": false,
	} {
		if got := (migration{Desc: said}).cause().Error(); !strings.Contains(got, said) || strings.Contains(got, "the target's QEMU") != refused {
			t.Errorf("%q is told as %q", said, got)
		}
	}
}

// TestPlaceOfCPUs: each CPU of a guest stays where it ran, unless another is there and less is to be done elsewhere.
func TestPlaceOfCPUs(t *testing.T) {
	for _, c := range []struct {
		may    fleet.CPUSet
		last   []int
		loaded map[int]int
		want   []int
	}{
		{fleet.CPUSet{0, 1}, []int{1, 0}, nil, []int{1, 0}},
		{fleet.CPUSet{0, 1}, []int{1, 1}, nil, []int{1, 0}},
		{fleet.CPUSet{0, 1}, []int{0, 0, 0, 0}, nil, []int{0, 1, 0, 1}},
		{fleet.CPUSet{0, 1, 2}, []int{0, 0}, map[int]int{0: 1}, []int{1, 2}}, // a pinned one has it
		{fleet.CPUSet{2, 3}, []int{0}, nil, []int{2}},                        // it may not stay
		{nil, []int{4}, nil, []int{4}},                                       // it has ended
	} {
		all := make([]floater, len(c.last))
		for i, last := range c.last {
			all[i] = floater{may: c.may, last: last}
		}
		loaded := maps.Clone(c.loaded)
		if loaded == nil {
			loaded = map[int]int{}
		}
		place(all, loaded)
		for i, f := range all {
			if f.last != c.want[i] {
				t.Errorf("%+v: number %d stays on %d", c, i, f.last)
			}
		}
	}
}
