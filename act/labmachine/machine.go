// Package labmachine makes the machines of a lab: computers that QEMU emulates, each with a Debian
// of its own, its own kernel and systemd. It builds the image that their disks begin as,
// starts them, and does to them what happens to computers.
//
// It must not know what runs in them. Their network is made by its caller. Its tests build
// no image; those that boot machines are in internal/systemtest.
package labmachine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// The names of the links that a machine is plugged into, in the namespace of its process.
const (
	LANTap     = "lan0"  // to the other machines
	CardTap    = "card0" // to them too, of a card that has virtual functions
	ControlTap = "control0"
)

// Machine is a computer of a lab. Its process needs the links above.
type Machine struct {
	Name        string
	Dir         string // of its disk and its console; what it writes outlives its process
	Run         string // of its sockets
	Image       Image
	CPUs        int
	MemoryBytes int64
	LAN         netip.Prefix // its address among the machines
	Gateway     netip.Addr
	Control     netip.Prefix // its address for whoever controls the lab
	MAC         string       // of LAN, and of Control with another first byte
	Accelerator string       // "kvm"; otherwise it is emulated
	Shares      []Share
	Words       []string // of its kernel's command line, beside those that it needs
	Passing     bool     // it has an IOMMU, and a network card with virtual functions, behind it and in no network
}

// Share is a folder of this machine that a machine of the lab may read.
type Share struct {
	Tag  string // that it is mounted by, as a file system of type 9p
	Path string
}

// ID is the machine's identity, as systemd writes it to /etc/machine-id. Labs that come
// later, and have other disks, have machines with other identities if seed differs.
func (m Machine) ID(seed string) string {
	sum := sha256.Sum256([]byte("pagurus lab machine " + seed + " " + m.Name))
	return hex.EncodeToString(sum[:16])
}

func (m Machine) disk() string { return filepath.Join(m.Dir, "disk.qcow2") }

// Console is the file with all that the machine's kernel and services said.
func (m Machine) Console() string { return filepath.Join(m.Dir, "console") }

// noTicks is what a kernel says when a CPU's timer has not begun to tick.
const noTicks = "Possible timer handling issue on cpu="

// Stuck reports whether a machine that has not started yet never will: now and then the
// timer of an emulated CPU does not begin to tick.
func (m Machine) Stuck() bool {
	said, err := os.ReadFile(m.Console())
	return err == nil && m.Accelerator != kvm && bytes.Contains(said, []byte(noTicks))
}

func (m Machine) monitor() string { return filepath.Join(m.Run, "monitor.sock") }

// MakeDisk gives the machine a fresh disk, unless it has one. After an error it has none.
func (m Machine) MakeDisk(ctx context.Context) error {
	if _, err := os.Stat(m.disk()); err == nil {
		return nil
	}
	for _, dir := range []string{m.Dir, m.Run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making the folders of %s: %w", m.Name, err)
		}
	}
	make := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", m.Image.disk(), m.disk())
	if out, err := make.CombinedOutput(); err != nil {
		_ = os.Remove(m.disk())
		return fmt.Errorf("making the disk of %s: %w: %s", m.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// commandLine is the kernel's. Emulated, every check that a kernel makes of itself costs.
func (m Machine) commandLine(seed string) string {
	console := "ttyS0"
	if m.Image.Xen {
		console = "hvc0"
	}
	words := []string{"root=/dev/vda", "rw", "console=" + console, "panic=-1", "quiet", "mitigations=off", "no_timer_check", "net.ifnames=0", "systemd.ssh_auto=no",
		"systemd.hostname=" + m.Name, "systemd.machine_id=" + m.ID(seed),
		"lab.address=" + m.LAN.String(), "lab.gateway=" + m.Gateway.String(), "lab.control=" + m.Control.String()}
	if m.Accelerator != kvm {
		words = append(words, "rodata=off", "tsc=reliable")
	}
	if m.Passing {
		words = append(words, "intel_iommu=on")
	}
	return strings.Join(append(words, m.Words...), " ")
}

// hypervisor is Xen's command line. The first domain gets half of the memory, and the FPU is switched eagerly: what QEMU emulates
// loses its registers otherwise.
func (m Machine) hypervisor() string {
	first := fmt.Sprintf("%dM", m.MemoryBytes>>21)
	return "console=com1 com1=115200,8n1 loglvl=warning guest_loglvl=warning noreboot sched=credit spec-ctrl=eager-fpu dom0_mem=" + first + ",max:" + first
}

// kernel are QEMU's arguments for what the machine boots.
func (m Machine) kernel(seed string) []string {
	if m.Image.Xen {
		first := m.Image.kernel() + " " + strings.ReplaceAll(m.commandLine(seed), ",", ",,")
		return []string{"-kernel", m.Image.xen(), "-append", m.hypervisor(), "-initrd", first + "," + m.Image.initrd()}
	}
	return []string{"-kernel", m.Image.kernel(), "-initrd", m.Image.initrd(), "-append", m.commandLine(seed)}
}

const kvm = "kvm"

// board is QEMU's machine. With the host's KVM an IOMMU that has interrupts needs a controller of interrupts outside of the kernel.
func (m Machine) board() string {
	if m.Passing && m.Accelerator == kvm {
		return "q35,kernel-irqchip=split"
	}
	return "q35"
}

// Command is the program that is the machine, and its arguments. To kill it is a power cut:
// the disk has what was written through to it.
func (m Machine) Command(seed string) []string {
	accel, cpu := "tcg,thread=multi,tb-size=512", "max,-x2apic,-tsc-deadline"
	if m.Accelerator == kvm {
		accel, cpu = kvm, "host"
	}
	if m.Image.Xen && m.Accelerator != kvm {
		cpu = "max" // the others lack what its guests need
	}
	args := []string{"qemu-system-x86_64", "-name", m.Name, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", m.board(), "-accel", accel, "-cpu", cpu, "-smp", strconv.Itoa(m.CPUs), "-m", fmt.Sprintf("%dK", m.MemoryBytes>>10)}
	args = append(args, m.kernel(seed)...)
	if m.Passing { // an IOMMU counts only for devices after it
		args = append(args, "-device", "intel-iommu,intremap=on,caching-mode=on")
	}
	args = append(args,
		"-drive", "file="+m.disk()+",if=virtio,format=qcow2,discard=unmap",
		"-netdev", "tap,id=lan,script=no,downscript=no,ifname="+LANTap,
		"-device", "virtio-net-pci,netdev=lan,addr=3,mac=52:"+m.MAC,
		"-netdev", "tap,id=control,script=no,downscript=no,ifname="+ControlTap,
		"-device", "virtio-net-pci,netdev=control,addr=4,mac=56:"+m.MAC,
		"-device", "virtio-rng-pci",
		"-serial", "file:"+m.Console(), "-qmp", "unix:"+m.monitor()+",server=on,wait=off")
	if m.Passing {
		args = append(args, "-device", "pcie-root-port,id=passing,chassis=1,addr=8",
			"-netdev", "tap,id=card,script=no,downscript=no,ifname="+CardTap,
			"-device", "igb,bus=passing,netdev=card,mac=5a:"+m.MAC)
	}
	for i, s := range m.Shares {
		id := "share" + strconv.Itoa(i)
		args = append(args, "-fsdev", "local,id="+id+",readonly=on,security_model=none,path="+s.Path,
			"-device", "virtio-9p-pci,fsdev="+id+",mount_tag="+s.Tag)
	}
	return args
}

// Shell is a command that runs a command in the machine, as root, and exits with its status.
// It has to be started where the machine's Control is reached.
func (m Machine) Shell(options []string, command ...string) []string {
	args := []string{"ssh", "-q", "-F", "none", "-i", m.Image.key(), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "GlobalKnownHostsFile=/dev/null",
		"-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=10"}
	args = append(args, options...)
	args = append(args, "root@"+m.Control.Addr().String())
	if len(command) > 0 {
		args = append(args, "--", quoted(command))
	}
	return args
}

// quoted writes a command so that a shell reads the same words.
func quoted(command []string) string {
	words := make([]string, len(command))
	for i, w := range command {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}
