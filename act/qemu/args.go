package qemu

import (
	"encoding/json"
	"fmt"
	"os"

	"pagurus/fleet"
)

// machine is all that shapes the command line of one guest. Source and target
// of a migration must get the same but for incoming, or QEMU refuses the
// stream.
type machine struct {
	guest       fleet.GuestID
	accelerator string // "kvm" or "tcg"
	cpus        int
	memoryBytes int64
	uneven      bool // see Loses
	kernel      string
	initrd      string
	root        string // image file, opened read-only
	mac         string
	tap         int // number of the tap's file descriptor in QEMU
	incoming    bool
	warm        bool        // it is going to be a snapshot
	state       *os.File    // the snapshot it starts from, behind the tap; nil: it boots
	tuned       *tunedGuest // nil: CPUs and memory of no particular shape
}

// files are what QEMU inherits beside the tap.
func (m machine) files() []*os.File {
	if m.state == nil {
		return nil
	}
	return []*os.File{m.state}
}

// The names inside a guest's folder, which is QEMU's working directory:
// relative, because a UNIX socket's path may have no more than 107 bytes.
const (
	monitorSocket = "qmp.sock"
	linkSocket    = "link.sock"
	consoleLog    = "console.log"
	ownLog        = "qemu.log"
	recordFile    = "guest.json"
)

// machineType is the one that every QEMU from 7.2 on knows, so that a guest
// can move between hosts of different age. Measured with Debian's cloud kernel
// under emulation q35 and i440fx boot equally fast; q35 can leave its disk
// controller out.
const machineType = "pc-q35-7.2,sata=off,smbus=off,vmport=off"

// linkName is the name by which the guest agent finds its link.
const linkName = "org.pagurus.link"

// linkChardev is QEMU's own name of the link's end on the host.
const linkChardev = "link"

// kernelArgs: a panic ends QEMU (panic=-1 with -no-reboot), which is how it is
// noticed; time is not calibrated against an emulated timer; a guest is one
// user's, so nothing inside it is defended against speculation. The rest is
// work the kernel would do for nothing: testing ciphers, rewriting itself for
// one processor, and what guests never use (a name it does not know it skips).
// Under emulation that is a third of its boot, 2.4 s instead of 3.7.
const kernelArgs = "console=ttyS0 quiet panic=-1 mitigations=off init_on_alloc=0 no_timer_check tsc=reliable random.trust_cpu=on" +
	" cryptomgr.notests noreplace-smp initcall_blacklist=jent_mod_init,load_system_certificate_list,bpf_tcp_ca_kfunc_init," +
	"bpf_dummy_struct_ops_init,trace_eval_init,init_encrypted,crypto_kdf108_init,bert_init"

// appended is the kernel's command line. The word is for the guest agent, which
// prepares what every job needs.
func appended(m machine) string {
	if m.warm {
		return kernelArgs + " pagurus.warm"
	}
	return kernelArgs
}

// sandbox is what QEMU may not do.
const sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// mebi is the unit of QEMU's -m.
const mebi = 1 << 20

// args is QEMU's command line, program name excluded.
func args(m machine) []string {
	out := append([]string{
		"-name", "guest=" + string(m.guest) + ",debug-threads=on",
		"-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
		"-machine", machineType,
		"-accel", acceleratorArgument(m.accelerator),
		"-cpu", cpuModel(m),
	}, parts(m)...)
	out = append(out,
		"-m", memory(m),
		"-sandbox", sandbox,
		"-msg", "timestamp=on",
		"-qmp", "unix:"+monitorSocket+",server=on,wait=off",
		"-kernel", m.kernel, "-initrd", m.initrd, "-append", appended(m),
		"-chardev", "file,id=console,path="+consoleLog,
		"-device", "isa-serial,chardev=console",
		"-blockdev", rootDisk(m.root),
		"-device", "virtio-blk-pci,drive=root",
		"-netdev", fmt.Sprintf("tap,id=net,fd=%d", m.tap),
		"-device", "virtio-net-pci,netdev=net,guest_announce=off,mac="+m.mac, // nobody learns where it is by its frames
		"-device", "virtio-serial-pci,id=serial",
		"-chardev", "socket,id="+linkChardev+",path="+linkSocket+",server=on,wait=off",
		"-device", "virtserialport,bus=serial.0,chardev="+linkChardev+",name="+linkName,
		"-object", "rng-builtin,id=rng",
		"-device", "virtio-rng-pci,rng=rng",
		// By it the guest says, while it is copied, what is free and need not be;
		// and it gives memory back to the host's owner, of which it takes again
		// what it needs before a program would have to die.
		"-object", "iothread,id=hints",
		"-device", "virtio-balloon-pci,free-page-hint=on,deflate-on-oom=on,iothread=hints",
	)
	if m.incoming || m.state != nil {
		// -S: what has been received stays paused until Resume says otherwise.
		out = append(out, "-S", "-incoming", "defer")
	}
	return out
}

// leastMemory is what QEMU rounds a guest's memory up to.
const leastMemory = 8 << 10

func memory(m machine) string {
	bytes := wholeMemory(m) + odd(m)
	if m.tuned != nil {
		bytes = m.tuned.Bytes()
	}
	return fmt.Sprintf("%dK", bytes>>10)
}

// parts are the guest's CPUs, and of one with a shape its memory.
func parts(m machine) []string {
	if m.tuned == nil {
		return []string{"-smp", fmt.Sprint(m.cpus)}
	}
	return m.tuned.Args(m.tap + 1)
}

// wholeMemory is in whole MiB, as all parts of a guest with a shape are.
func wholeMemory(m machine) int64 { return (m.memoryBytes + mebi - 1) / mebi * mebi }

// odd is what a guest has more than it needs: see Loses.
func odd(m machine) int64 {
	if m.uneven {
		return leastMemory
	}
	return 0
}

// cpuModel is what the guest is told to have of a processor.
func cpuModel(m machine) string {
	if m.accelerator == Hardware && m.tuned != nil && m.tuned.Shape.CPU != "" {
		return tunedModel(m.tuned.Shape.CPU) // what every host has that it may visit
	}
	return acceleratorCPU(m.accelerator)
}

// seenCPU names what guests see, so that a guest is only moved where it sees
// the same. Where memory is uneven that is part of the name.
func seenCPU(a Ability) string {
	if Loses(a.Accelerator == Emulation, a.Version, nil) {
		return emulatedCPU + " of a QEMU before 9"
	}
	return cpuSeen(a.Accelerator)
}

// rootDisk is JSON because a path may hold commas.
func rootDisk(path string) string {
	text, err := json.Marshal(map[string]any{
		"driver": "raw", "node-name": "root", "read-only": true,
		"file": map[string]any{"driver": "file", "filename": path, "read-only": true},
	})
	if err != nil {
		panic(err) // strings and booleans always encode
	}
	return string(text)
}
