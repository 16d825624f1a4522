package qemu

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"pagurus/fleet"
)

// machine is everything that determines a guest's command line. Source and target of a
// migration must have the same except incoming, or QEMU refuses the stream.
type machine struct {
	guest       fleet.GuestID
	uid         uint32 // of its QEMU
	accelerator string // "kvm" or "tcg"
	cpu         string // fleet.Guest's
	cpus        int
	memoryBytes int64
	uneven      bool // see Loses
	kernel      string
	words       string // of the image, for its kernel's command line
	initrd      string
	root        string // image file, opened read-only
	mac         string
	tap         int // the tap's file descriptor number in QEMU
	vhost       int // the number of that of vhost-net; 0: none
	incoming    bool
	restored    bool        // from a checkpoint, which is state
	byHand      bool        // see Config.ByHand
	warm        bool        // it will be saved as a snapshot
	state       *os.File    // the snapshot or checkpoint it starts from, after the tap; nil: it boots
	tuned       *tunedGuest // nil: no shape
	keeps       bool        // its CPUs while they are idle: see tunedGuest.keeps

	device *fleet.Device // of this host, that it has for itself; nil: none
	pair   *pairing      // the two halves of its card; nil: it is not one of two
}

// files are what QEMU inherits in addition to the tap.
func (m machine) files() []*os.File {
	if m.state == nil {
		return nil
	}
	return []*os.File{m.state}
}

// Names in a guest's folder, which is QEMU's working directory. They are relative,
// because a UNIX socket's path has at most 107 bytes.
const (
	monitorSocket = "qmp.sock"
	linkSocket    = "link.sock"
	consoleLog    = "console.log"
	ownLog        = "qemu.log"
)

// machineType is known to every QEMU from 7.2 on, so that a guest can move between hosts
// with different versions. With Debian's cloud kernel under emulation q35 and i440fx boot
// equally fast; q35 can omit its disk controller.
const machineType = "pc-q35-7.2,sata=off,smbus=off,vmport=off"

// linkName is the name by which the guest agent finds its link.
const linkName = "org.pagurus.link"

// linkChardev is QEMU's name of the link's host end.
const linkChardev = "link"

// kernelArgs: a panic ends QEMU (panic=-1 with -no-reboot), which is how it is noticed.
// Time is not calibrated against an emulated timer. A guest belongs to one user, so
// mitigations are off. The rest skips useless work: testing ciphers, patching for one
// processor, and unused features (the kernel ignores unknown names). Under emulation this
// saves a third of the boot: 2.4 s instead of 3.7.
const kernelArgs = "console=ttyS0 quiet panic=-1 mitigations=off init_on_alloc=0 no_timer_check tsc=reliable random.trust_cpu=on" +
	" cryptomgr.notests noreplace-smp initcall_blacklist=jent_mod_init,load_system_certificate_list,bpf_tcp_ca_kfunc_init," +
	"bpf_dummy_struct_ops_init,trace_eval_init,init_encrypted,crypto_kdf108_init,bert_init"

// appended is the kernel's command line. A word tells the guest agent to prepare what
// every job needs, or to load drivers of devices. An image with a kernel of its own may have words for it.
func appended(m machine) string {
	all := []string{kernelArgs}
	if m.words != "" {
		all = append(all, m.words)
	}
	switch {
	case m.warm:
		all = append(all, "pagurus.warm")
	case m.device != nil || m.pair != nil:
		all = append(all, fleet.GuestDeviceWord)
	}
	return strings.Join(all, " ")
}

// sandbox is QEMU's seccomp policy.
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
	if m.keeps {
		out = append(out, "-overcommit", "cpu-pm=on")
	}
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
		"-netdev", netdev(m),
		"-device", netDevice(m),
		"-device", "virtio-serial-pci,id=serial",
		"-chardev", "socket,id="+linkChardev+",path="+linkSocket+",server=on,wait=off",
		"-device", "virtserialport,bus=serial.0,chardev="+linkChardev+",name="+linkName,
		"-object", "rng-builtin,id=rng",
		"-device", "virtio-rng-pci,rng=rng",
		"-object", "iothread,id=hints",
		"-device", balloonDevice(m),
	)
	if m.device != nil || m.pair != nil {
		out = append(out, passedArgs(m)...)
	}
	if (m.incoming || m.state != nil) && !m.byHand {
		out = append(out, "-S") // received state stays suspended until Resume
	}
	if m.incoming || m.state != nil {
		out = append(out, "-incoming", "defer")
	}
	return out
}

// balloonDevice is the device by which the guest gives memory to the host's owner. It takes memory back before a program
// would be killed.
//
// Guests boot without free page hints. With them the guest's kernel takes all of its free memory
// whenever a pass of the copy begins, and the programs of a guest with one CPU wait for that:
// nearly a second in measurements. A guest that arrives may have begun with hints, under an
// earlier version, and keeps them. One that began without does not notice that they are offered.
func balloonDevice(m machine) string {
	hints := "off"
	if m.incoming || m.state != nil {
		hints = "on"
	}
	return "virtio-balloon-pci,free-page-hint=" + hints + ",deflate-on-oom=on,iothread=hints"
}

// leastMemory is the unit to which QEMU rounds up a guest's memory.
const leastMemory = 8 << 10

func memory(m machine) string {
	bytes := wholeMemory(m) + odd(m)
	if m.tuned != nil {
		bytes = m.tuned.Bytes()
	}
	return fmt.Sprintf("%dK", bytes>>10)
}

// parts are the arguments for a guest's CPUs, and for its memory if it has a shape.
func parts(m machine) []string {
	if m.tuned == nil {
		return []string{"-smp", fmt.Sprint(m.cpus)}
	}
	return m.tuned.Args(m.tap + 1 + len(m.files()))
}

// wholeMemory rounds up to whole MiB, as for all parts of a guest with a shape.
func wholeMemory(m machine) int64 { return (m.memoryBytes + mebi - 1) / mebi * mebi }

// odd is a guest's additional memory: see Loses.
func odd(m machine) int64 {
	if m.uneven {
		return leastMemory
	}
	return 0
}

// cpuModel is the guest's CPU model.
func cpuModel(m machine) string {
	if m.accelerator == Hardware && m.cpu != "" {
		if fleet.IsCPULevel(m.cpu) {
			return modelOf(m.cpu) + enforce
		}
		return m.cpu
	}
	if m.accelerator == Hardware && m.tuned != nil && m.tuned.Shape.CPU != "" {
		return tunedModel(m.tuned.Shape.CPU) // the level that all hosts it may visit have
	}
	return acceleratorCPU(m.accelerator)
}

// seenCPU names the CPU that guests see, so that a guest only moves where it is the same.
// Odd memory sizes are part of the name.
func seenCPU(a Ability) string {
	if Loses(a.Accelerator == Emulation, a.Version, nil) {
		return emulatedCPU + " of a QEMU before 9"
	}
	return cpuSeen(a.Accelerator)
}

// rootDisk is JSON because a path may contain commas.
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
