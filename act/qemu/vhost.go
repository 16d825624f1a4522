package qemu

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// vhostDevice is the kernel's part of a network device: it carries a guest's frames without
// waking QEMU.
const vhostDevice = "/dev/vhost-net"

// vhostSetOwner is VHOST_SET_OWNER (linux/vhost.h).
const vhostSetOwner = 0xaf01

// tryVhost reports whether vhost-net works here: a QEMU that is given one that does not
// refuses to start.
func tryVhost(path string) bool {
	f, err := openVhost(path)
	if err != nil {
		return false
	}
	defer f.Close()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), vhostSetOwner, 0)
	return errno == 0
}

// openVhost opens it for one guest, for whose QEMU the file is: only root may open it.
func openVhost(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR, 0) }

// netdev is QEMU's argument for a guest's network.
func netdev(m machine) string {
	out := fmt.Sprintf("tap,id=net,fd=%d", m.tap)
	if m.vhost > 0 {
		out += fmt.Sprintf(",vhost=on,vhostfd=%d", m.vhost)
	}
	return out
}

// netDevice is QEMU's argument for the guest's end. Announcements are off, because frames
// do not teach where the guest is; by hand they do. Under KVM the guest must not use what vhost-net cannot
// do, or it could not move to a host that has it: resets of single queues.
func netDevice(m machine) string {
	out := "virtio-net-pci,netdev=net,mac=" + m.mac
	if !m.byHand {
		out = "virtio-net-pci,netdev=net,guest_announce=off,mac=" + m.mac
	}
	if m.pair != nil {
		out += ",failover=on,id=" + standbyID
	}
	if m.accelerator == Hardware {
		out += ",queue_reset=off"
	}
	return out
}
