package host

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Account is the user as which a process runs.
type Account struct {
	name     string
	UID, GID uint32
	device   string // of hardware virtualization
}

// FindAccount finds an account by its name.
func FindAccount(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return Account{}, fmt.Errorf("find the user that guests run as: %w; make it with: useradd --system --no-create-home --shell /usr/sbin/nologin %s", err, name)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("user %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("user %s: %w", name, err)
	}
	if uid == 0 {
		return Account{}, fmt.Errorf("guests may not run as root; name another user than %s", name)
	}
	return Account{name: name, UID: uint32(uid), GID: uint32(gid), device: "/dev/kvm"}, nil
}

// Attributes makes a child independent: own session, unprivileged, no terminal. It is in the group that may use hardware
// virtualization, as that is now: while a machine boots, the device may come after the agent.
func (a Account) Attributes() *syscall.SysProcAttr {
	who := syscall.Credential{Uid: a.UID, Gid: a.GID}
	var st unix.Stat_t
	if unix.Stat(a.device, &st) == nil && st.Gid != 0 {
		who.Groups = []uint32{st.Gid}
	}
	return &syscall.SysProcAttr{Setsid: true, Credential: &who}
}

// ProcessesIn returns the processes whose working directory is dir, whatever they call it, and that is
// says so of, given their number and user. It finds a
// process that an agent started before it died and could record the PID.
func ProcessesIn(dir string, is func(pid int, uid uint32) bool) []Process {
	var out []Process
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	folder, err := os.Stat(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+e.Name(), &st) != nil || !is(pid, st.Uid) {
			continue
		}
		// The file is compared and not its name, which differs where the process has another root.
		if at, err := os.Stat("/proc/" + e.Name() + "/cwd"); err != nil || !os.SameFile(at, folder) {
			continue
		}
		if s, err := ReadStat(pid); err == nil {
			out = append(out, Process{pid, s.Ticks})
		}
	}
	return out
}
