package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// Hidden lists files and folders of the kernel that reveal the host's state or change it: those
// that container engines hide, and what only the host's root may read, whom the container's root
// equals for the kernel. Kernels and machines differ in which they have. So each host hides its
// own, also for a container that comes to it (Hide), and a dump leaves these mounts out. A star stands for the rest of a name, and
// alone for each but what is harmless.
var Hidden = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
	"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	"/proc/allocinfo", "/proc/dynamic_debug", "/proc/kallsyms", "/proc/key-users", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount",
	"/proc/kpageflags", "/proc/mtrr", "/proc/pagetypeinfo", "/proc/profile", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/xen",
	"/proc/cmdline", "/sys/kernel/boot_params", // with root=UUID=
	// Serial numbers of disks, controllers, batteries, USB devices and file systems are anybody's to read. They name the
	// machine. Its devices are no container's; its processors and NUMA nodes are below system, its own link below virtual.
	"/sys/devices/pci*", "/sys/devices/platform", "/sys/devices/LNXSYSTM*", "/sys/devices/pnp*", "/sys/devices/virtio-mmio*", "/sys/devices/vio*", "/sys/devices/css*",
	"/sys/devices/ap", "/sys/devices/xen*", "/sys/devices/isa", "/sys/devices/eisa", "/sys/devices/soc*", "/sys/devices/virtual/*", "/sys/bus/pci/devices", "/sys/fs/btrfs", "/sys/fs/bcache", "/sys/hypervisor",
	"/sys/kernel/debug", "/sys/kernel/slab", "/sys/kernel/tracing", "/sys/kernel/vmcoreinfo",
}

// harmless are the devices below virtual that a container may see: its link, those that each machine has, and how fast memory is.
// Of others a name may be the machine's: of an NVMe subsystem, a RAID, a board.
var harmless = []string{"mem", "memory_tiering", "misc", "net", "tty"}

// fixed lists those that are read-only, as in the specification of the Open Container Initiative.
// Every kernel has them, and they move with a container.
var fixed = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// Hide covers the hidden files of this host for a container that has come from another, given one of
// its processes. They must not run. After an error some may not be covered.
func Hide(pid int) error {
	there, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return fmt.Errorf("hide what is this host's: %w", err)
	}
	defer there.Close()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return fmt.Errorf("hide what is this host's: %w", err)
	}
	covered := map[string]bool{} // a source of an earlier version has sent its mounts
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 {
			covered[f[4]] = true
		}
	}
	return thread.Own(func() error {
		err := unix.Unshare(unix.CLONE_FS) // a thread that shares its folder cannot go
		if err == nil {
			err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNS)
		}
		if err != nil {
			return fmt.Errorf("hide what is this host's: %w", err)
		}
		return hide(Hidden, covered)
	})
}

// HiddenHere lists the paths of Hidden on this machine, those with a star by their names. Others it lists whether they exist or not.
func HiddenHere() []string { return named(Hidden) }

func named(paths []string) (all []string) {
	for _, path := range paths {
		if !strings.Contains(path, "*") {
			all = append(all, path)
			continue
		}
		found, _ := filepath.Glob(path) // constant patterns are well-formed
		for _, one := range found {
			if strings.HasSuffix(path, "/*") && slices.Contains(harmless, filepath.Base(one)) || slices.Contains(all, one) {
				continue
			}
			all = append(all, one)
		}
	}
	return all
}

// hide covers paths that exist and are not covered yet, in this thread's mount namespace.
func hide(paths []string, covered map[string]bool) error {
	for _, path := range named(paths) {
		st, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || covered[path] {
			continue
		}
		if err != nil {
			return err
		}
		over := "/dev/null"
		if st.IsDir() {
			over = "/dev/empty"
		}
		if err := bind(over, path); err != nil {
			return err
		}
	}
	return nil
}

// fix makes the fixed paths read-only.
func fix() error {
	for _, path := range fixed {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := bind(path, path); err != nil {
			return err
		}
	}
	return nil
}

// HiddenInUse says, for people, which of these processes has a hidden file open. It cannot move so,
// because the file would not be found.
func HiddenInUse(pids []int, nameOf func(pid int) string) (found []string) {
	hidden := HiddenHere()
	for _, pid := range pids {
		paths := []string{fmt.Sprintf("/proc/%d/cwd", pid), fmt.Sprintf("/proc/%d/root", pid)}
		open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		for _, e := range open {
			paths = append(paths, fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		}
		for _, path := range paths {
			if what, err := os.Readlink(path); err == nil && slices.Contains(hidden, what) {
				found = append(found, fmt.Sprintf("%s has %s open, which is empty because it is the host's: let it close it", nameOf(pid), what))
			}
		}
	}
	return found
}
