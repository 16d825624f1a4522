package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Account is the user as which a process runs.
type Account struct {
	name     string
	UID, GID uint32
	groups   []uint32 // the group that may use /dev/kvm
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
	a := Account{name: name, UID: uint32(uid), GID: uint32(gid)}
	var st unix.Stat_t
	if unix.Stat("/dev/kvm", &st) == nil && st.Gid != 0 {
		a.groups = []uint32{st.Gid}
	}
	return a, nil
}

// Attributes makes a child independent: own session, unprivileged, no terminal.
func (a Account) Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.groups},
	}
}

// largestFile is the largest file, in bytes, that a guest can make its process write on
// this host: its console. Output beyond it is lost.
const largestFile = 256 << 10

// refuseSilently makes a write beyond largestFile fail without ending the process.
// Children ignore the signals that their parent ignores.
var refuseSilently = sync.OnceFunc(func() { signal.Ignore(unix.SIGXFSZ) })

// Spawn starts a program in dir that outlives this one. Its output goes to log, and files
// become its descriptors from 3 on. No file that it writes can grow beyond largestFile.
func Spawn(a Account, dir string, command []string, log *os.File, files ...*os.File) (Process, error) {
	cmd := exec.Command("prlimit", append([]string{fmt.Sprintf("--fsize=%d", largestFile), "--"}, command...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, log, log, files
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = a.Attributes()
	refuseSilently()
	if err := cmd.Start(); err != nil {
		return Process{}, fmt.Errorf("start %s: %w", command[0], err)
	}
	p := Process{PID: cmd.Process.Pid}
	st, err := ReadStat(p.PID)
	if err != nil {
		return Process{}, errors.Join(fmt.Errorf("start %s: %w", command[0], err), cmd.Process.Kill(), cmd.Wait())
	}
	p.Ticks = st.Ticks
	// The agent that watches the process reaps it: this one or the next.
	return p, cmd.Process.Release()
}

// ProcessesIn returns the account's processes whose working directory is dir. It finds a
// process that an agent started before it died and could record the PID.
func ProcessesIn(a Account, dir string) []Process {
	var out []Process
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+e.Name(), &st) != nil || st.Uid != a.UID {
			continue
		}
		if at, err := os.Readlink("/proc/" + e.Name() + "/cwd"); err != nil || at != dir {
			continue
		}
		if s, err := ReadStat(pid); err == nil {
			out = append(out, Process{pid, s.Ticks})
		}
	}
	return out
}
