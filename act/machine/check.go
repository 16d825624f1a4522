package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Finding is the result of one check.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"`        // guests cannot run here without it
	Detail string `json:"detail"`        // the state, and its purpose if not OK
	Fix    string `json:"fix,omitempty"` // a shell command that repairs it; empty: manual work
}

// Requirements.
const (
	// GuestUser is the account of guests.
	GuestUser = "pagurus"
	// diskNeeded is for an image and its build.
	diskNeeded = 4 << 30
	// memoryNeeded is for Pagurus and one small virtual machine; memoryLeast for an agent
	// and one small container, on a machine of 256 MiB less the kernel's part.
	memoryNeeded = 2 << 30
	memoryLeast  = 192 << 20
	// The oldest QEMU with the machine type of all guests, so that they can move between
	// hosts with different versions.
	oldestMajor, oldestMinor = 7, 2
	// programLimit is the time for querying a program's version.
	programLimit = 20 * time.Second
)

// program is a required program of a Debian package.
type program struct{ name, file, packages string }

// programs are the programs that Pagurus runs.
var programs = []program{
	{"networks", "ip", "iproute2"},
	{"image builder", "mmdebstrap", "mmdebstrap"},
	{"image packer", "mksquashfs", "squashfs-tools"},
	{"kernel unpacker", "zstd", "zstd"},
	{"kernel unpacker", "xz", "xz-utils"},
	{"namespaces", "unshare", "util-linux"},
	{"mounts", "mount", "mount"},
	{"file server", "ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"},
}

// Check makes all checks except whether a guest really runs. state is the folder for
// images.
func Check(ctx context.Context, state string) []Finding {
	found := []Finding{checkSystem(), checkRoot(), checkQEMU(ctx)}
	for _, p := range programs {
		found = append(found, p.check())
	}
	return append(found, checkFileSystems(), checkKeyring(), checkUser(), checkKVM(), checkLinks(), checkFirewall(ctx),
		checkGroups("/sys/fs/cgroup", "/proc/cgroups"), checkMemory(), checkDisk(state))
}

// install is the command that installs packages on Debian and Ubuntu.
func install(packages string) string {
	return "apt-get -o DPkg::Lock::Timeout=120 update -q && apt-get -o DPkg::Lock::Timeout=120 install -q -y --no-install-recommends " + packages
}

// installServer installs the file server's packages without starting or enabling their
// service: Pagurus runs one file server for each job.
func installServer(packages string) string {
	return unstarted(install(packages)) + " && { systemctl disable --now nfs-ganesha 2>/dev/null || true; }"
}

// ReinstallServer is the command for a broken file server.
func ReinstallServer() string { return installServer("--reinstall nfs-ganesha nfs-ganesha-vfs mount") }

// policy is the program that packages ask whether they may start a service.
var policy = "/usr/sbin/policy-rc.d"

// unstarted is a command during which no package starts a service. An existing policy is
// kept.
func unstarted(command string) string {
	return fmt.Sprintf(`( trap 'exit 1' HUP INT TERM; { [ -e %[1]s ] || { trap 'rm -f %[1]s' EXIT; printf '#!/bin/sh\nexit 101\n' >%[1]s && chmod 755 %[1]s; }; } && %[2]s )`,
		policy, command)
}

func (p program) check() Finding {
	f := Finding{Name: p.name, Needed: true, Fix: install(p.packages)}
	path, err := find(p.file)
	if err != nil {
		f.Detail = p.file + " is missing"
		if p.file == "ganesha.nfsd" {
			f.Fix = installServer(p.packages)
		}
		return f
	}
	f.OK, f.Detail, f.Fix = true, path, ""
	return f
}

// systemFolders may be missing in an ordinary user's path.
var systemFolders = []string{"/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"}

func find(file string) (string, error) {
	if path, err := exec.LookPath(file); err == nil {
		return path, nil
	}
	for _, dir := range systemFolders {
		if path := filepath.Join(dir, file); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

func checkSystem() Finding {
	f := Finding{Name: "system", Needed: true, OK: runtime.GOARCH == "amd64"}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		f.Detail = fmt.Sprintf("Linux %s on %s, %d CPUs", unix.ByteSliceToString(u.Release[:]), runtime.GOARCH, runtime.NumCPU())
	}
	if !f.OK {
		f.Detail += ": guests are amd64"
	}
	return f
}

func checkRoot() Finding {
	if os.Geteuid() == 0 {
		return Finding{Name: "root", OK: true, Detail: "is root"}
	}
	return Finding{Name: "root", Detail: "not root: only jobs can be run; some of this cannot be checked"}
}

var qemuVersion = regexp.MustCompile(`version (\d+)\.(\d+)`)

func checkQEMU(ctx context.Context) Finding {
	f := program{"QEMU", "qemu-system-x86_64", "qemu-system-x86"}.check()
	if !f.OK {
		return f
	}
	ctx, stop := context.WithTimeout(ctx, programLimit)
	defer stop()
	out, err := exec.CommandContext(ctx, f.Detail, "--version").Output()
	m := qemuVersion.FindSubmatch(out)
	if err != nil || m == nil {
		f.OK, f.Detail = false, f.Detail+" does not say its version"
		f.Fix = install("--reinstall qemu-system-x86")
		return f
	}
	major, _ := strconv.Atoi(string(m[1])) // digits
	minor, _ := strconv.Atoi(string(m[2]))
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		f.OK, f.Detail = false, fmt.Sprintf("QEMU %d.%d is too old: %d.%d is the oldest that works, which is Debian 12's", major, minor, oldestMajor, oldestMinor)
		return f
	}
	f.Detail = fmt.Sprintf("version %d.%d, %s", major, minor, f.Detail)
	return f
}

// fileSystems is the file server's access to local file systems, a separate package.
var fileSystems = "/usr/lib/*/ganesha/libfsalvfs.so"

func checkFileSystems() Finding {
	f := Finding{Name: "file server", Needed: true}
	found, _ := filepath.Glob(fileSystems) // a constant pattern is well-formed
	if f.OK = len(found) > 0; f.OK {
		f.Detail = found[0]
		return f
	}
	f.Detail, f.Fix = "its access to local file systems (FSAL VFS) is missing", installServer("nfs-ganesha-vfs")
	return f
}

var keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

func checkKeyring() Finding {
	if _, err := os.Stat(keyring); err != nil {
		return Finding{Name: "Debian's keys", Needed: true, Detail: "the keys that sign Debian's packages are missing, and images are made of these", Fix: install("debian-archive-keyring")}
	}
	return Finding{Name: "Debian's keys", Needed: true, OK: true, Detail: keyring}
}

func checkUser() Finding {
	f := Finding{Name: "guests' user", Needed: true}
	u, err := user.Lookup(GuestUser)
	if f.OK = err == nil; f.OK {
		f.Detail = fmt.Sprintf("%s, uid %s", u.Username, u.Uid)
		return f
	}
	f.Detail = "there is no user " + GuestUser + " for guests to run as"
	f.Fix = "useradd --system --no-create-home --shell /usr/sbin/nologin " + GuestUser
	return f
}

// guestsMayOpen reports whether QEMU may open a device, which is in its group, unless that is root's.
func guestsMayOpen(st unix.Stat_t) bool {
	const others, group = 0o006, 0o060
	return st.Mode&others == others || st.Gid != 0 && st.Mode&group == group
}

// checkKVM only checks that it exists, and who may open it. That proves little: the driver of guests tries it.
func checkKVM() Finding {
	f := Finding{Name: "KVM"}
	var st unix.Stat_t
	switch err := unix.Stat("/dev/kvm", &st); {
	case err == nil:
		if f.OK = guestsMayOpen(st); f.OK {
			f.Detail = "guests may open /dev/kvm"
		} else {
			f.Detail = "guests may not open /dev/kvm, and are emulated, which is much slower; what would help is found by booting one"
		}
	default:
		f.Detail = "no /dev/kvm: guests are emulated, which is much slower; a BIOS setting or nested virtualization may bring it"
		if cpuHas("vmx") || cpuHas("svm") {
			f.Fix = "modprobe kvm_intel || modprobe kvm_amd"
		}
	}
	return f
}

func cpuHas(flag string) bool {
	b, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && strings.Contains(string(b), " "+flag+" ")
}

// checkGroups checks the limits and accounting of guests' CPU time. Without them guests
// run, but all with equal shares.
func checkGroups(tree, v1 string) Finding {
	f := Finding{Name: "control groups", Needed: true}
	if b, err := os.ReadFile(filepath.Join(tree, "cgroup.controllers")); err == nil {
		has := strings.Fields(string(b))
		for _, want := range []string{"cpu", "memory"} {
			if !slices.Contains(has, want) {
				f.Detail = fmt.Sprintf("version 2 has no controller %q", want)
				return f
			}
		}
		f.OK, f.Detail = true, "version 2 with cpu and memory"
		return f
	}
	b, err := os.ReadFile(v1)
	if err != nil {
		f.Detail = "the kernel has none"
		return f
	}
	for _, want := range []string{"cpu", "cpuacct"} {
		if _, err := os.Stat(filepath.Join(tree, want)); err != nil || !strings.Contains(string(b), want+"\t") {
			f.Detail = fmt.Sprintf("version 1 has no %s mounted at %s", want, filepath.Join(tree, want))
			f.Fix = fmt.Sprintf("mkdir -p %[1]s/%[2]s && mount -t cgroup -o %[2]s %[2]s %[1]s/%[2]s", tree, want)
			return f
		}
	}
	f.OK, f.Detail = true, "version 1 with cpu and cpuacct"
	return f
}

func checkMemory() Finding {
	f := Finding{Name: "memory"}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		f.Detail = err.Error()
		return f
	}
	total := int64(info.Totalram) * int64(info.Unit)
	f.OK, f.Detail = total >= memoryLeast, gib(total)
	if total < memoryNeeded {
		f.Detail += ": room for small containers, and too little for a virtual machine"
	}
	if !f.OK {
		f.Detail = gib(total) + ": too little for an agent and a guest"
	}
	return f
}

func checkDisk(state string) Finding {
	f := Finding{Name: "disk"}
	dir := filepath.Clean(state)
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		f.Detail = fmt.Sprintf("%s: %v", dir, err)
		return f
	}
	free := int64(st.Bavail) * st.Bsize
	f.OK, f.Detail = free >= diskNeeded, gib(free)+" free for "+state
	if !f.OK {
		f.Detail += ": building an image takes up to " + gib(diskNeeded)
	}
	return f
}

func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
