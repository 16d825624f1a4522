package labmachine

import "io/fs"

// file is a file of a machine, a symbolic link to text, or with mode 0 no file.
type file struct {
	path string
	mode fs.FileMode
	text string
}

// content is what makes a Debian a machine of a lab: a shell for the key, a network from the
// kernel's command line, and nothing that works on its own while tests run.
func content(public string) []file {
	all := []file{
		{"etc/machine-id", 0o444, ""}, // empty: not the first start, and the command line says it
		{"etc/hostname", 0, ""},
		{"etc/resolv.conf", 0, ""},
		{"etc/fstab", 0o644, "/dev/vda / ext4 defaults 0 1\n"},
		{"etc/dpkg/dpkg.cfg.d/lab", 0o644, "force-unsafe-io\n"},
		{"etc/modules-load.d/lab.conf", 0o644, "9pnet_virtio\n"}, // or a mount may come before its device
		{"etc/systemd/system.conf.d/lab.conf", 0o644, patience},
		{"root/.ssh/authorized_keys", 0o600, public},
		{"usr/local/sbin/lab-network", 0o755, network},
		{"etc/systemd/system/lab-network.service", 0o644, networkUnit},
		{"etc/systemd/system/multi-user.target.wants/lab-network.service", fs.ModeSymlink, "../lab-network.service"},
	}
	for _, unit := range []string{"getty@tty1.service", "serial-getty@ttyS0.service", "rpcbind.service", "rpcbind.socket"} {
		all = append(all, file{"etc/systemd/system/" + unit, fs.ModeSymlink, "/dev/null"})
	}
	for _, timer := range []string{"apt-daily", "apt-daily-upgrade", "dpkg-db-backup", "e2scrub_all", "fstrim", "man-db", "logrotate"} {
		all = append(all, file{"etc/systemd/system/" + timer + ".timer", fs.ModeSymlink, "/dev/null"})
	}
	return all
}

// patience is for machines that are emulated on a busy computer.
const patience = `[Manager]
DefaultTimeoutStartSec=15min
DefaultTimeoutStopSec=5min
DefaultDeviceTimeoutSec=15min
`

const network = `#!/bin/sh
# Sets the addresses that the kernel's command line has.
set -e
ip link set lo up
for word in $(cat /proc/cmdline); do
  case $word in
  lab.address=*) ip address replace "${word#*=}" dev eth0; ip link set eth0 up ;;
  lab.control=*) ip address replace "${word#*=}" dev eth1; ip link set eth1 up ;;
  esac
done
for word in $(cat /proc/cmdline); do
  case $word in
  lab.gateway=*) ip route replace default via "${word#*=}" ;;
  esac
done
`

const networkUnit = `[Unit]
Description=Network of a lab's machine
DefaultDependencies=no
Before=network.target network-online.target
Wants=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/lab-network

[Install]
WantedBy=multi-user.target
`
