package fence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/act/host/lean"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// processName is the name under which a process keeps a lease.
const processName = "pagurus-fence"

// Shims are the processes that this package starts, by name.
var Shims = map[string]func(args []string) error{processName: serve}

const (
	// again is how often guests are looked for once the lease is over: an agent that is cut off
	// may still be making one.
	again = time.Second
	// stopLimit is how long killed processes are waited for before it looks again.
	stopLimit = 5 * time.Second
	// first is the niceness of the process: a busy machine is no reason to be late.
	first = -20
	// spared keeps the kernel from killing the process when memory runs out.
	spared = "-1000"
)

// serve keeps the lease of a host, with the run folder as the argument, until there is none.
func serve(args []string) error {
	if len(args) != 1 {
		return errors.New("the process needs the run folder of the host")
	}
	runtime.LockOSThread() // whose niceness it is
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, first)
	_ = lean.Shed(0)                                                         // what only a start needs is not locked
	_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT) // without any of them it may be late
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(spared), 0)
	clock, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("making a timer: %w", err)
	}
	rehearse(args[0])
	k := process{run: args[0], clock: clock, noted: -1, ended: map[fleet.GuestID]host.Process{}}
	for {
		l, held, err := k.lease()
		if err != nil {
			fmt.Fprintln(os.Stderr, err) // and the one that it knows ends when it does
		} else if k.last = l; !held {
			return nil
		}
		if k.last.left(Now()) <= 0 {
			k.stopGuests()
			if err := k.sleep(Now() + int64(again)); err != nil {
				return err
			}
			continue
		}
		k.known, k.ended, k.noted, k.count = nil, map[fleet.GuestID]host.Process{}, -1, 0
		if err := k.sleep(k.last.Asked + int64(k.last.Length)); err != nil {
			return err
		}
	}
}

// rehearse stops the guests of a host that there is not, so that the code for it, and what is around that, is in memory and stays there: when the time
// comes the disk may be slow, or gone.
func rehearse(run string) {
	nowhere := process{run: filepath.Join(run, Folder, "rehearsal")}
	_, _, _ = nowhere.lease()
	if self, err := host.Find(os.Getpid()); err == nil && !self.Gone() {
		_ = slices.Concat(host.Family(self.PID), host.Beside(self.PID))
	}
	nowhere.stopGuests()
}

// process is what keeps a lease.
type process struct {
	run   string
	clock int // a timer
	last  lease
	known []fleet.GuestID // stopped since the lease ended
	ended map[fleet.GuestID]host.Process
	noted int // how many processes of them are written down; -1: nothing is
	count int // of them
}

// lease reads the lease. It is not held if the file is gone, or of another boot.
func (k *process) lease() (l lease, held bool, err error) {
	err = note.Load(filepath.Join(k.run, Folder, leaseFile), &l)
	if errors.Is(err, fs.ErrNotExist) {
		return l, false, nil
	}
	return l, err == nil && l.Length > 0 && l.Boot == boot(), err
}

// sleep returns at a time, also if the machine was suspended until after it.
func (k *process) sleep(until int64) error {
	at := unix.NsecToTimespec(until)
	if err := unix.TimerfdSettime(k.clock, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: at}, nil); err != nil {
		return fmt.Errorf("setting the timer: %w", err)
	}
	for b := make([]byte, 8); ; {
		if _, err := unix.Read(k.clock, b); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// guest is what the process reads of a driver's record.
type guest struct {
	host.Record
	Port struct { // of a container
		Subnet fleet.Subnet `json:"subnet"`
		Index  int          `json:"index"`
	} `json:"port"`
}

// recordFile is a driver's record in a guest's folder.
const recordFile = "guest.json"

// kinds are the folders in which drivers keep their guests. Those of the second have sockets of
// this kernel, whose ends would be told to their peers. Of the third, domains of Xen, a process that belongs to the first
// one destroys the domain when that has ended.
var kinds = []struct {
	folder  string
	sockets bool
	minded  bool
}{{folder: "guests"}, {folder: "containers", sockets: true}, {folder: "domains", minded: true}}

// stopGuests ends all guests that it finds, and notes which.
func (k *process) stopGuests() {
	var ended []host.Process
	for _, kind := range kinds {
		found, _ := os.ReadDir(filepath.Join(k.run, kind.folder)) // without it there are none
		for _, e := range found {
			var g guest
			if err := note.Load(filepath.Join(k.run, kind.folder, e.Name(), recordFile), &g); err != nil || g.Process.Gone() {
				continue
			}
			if kind.sockets {
				// The same guest may go on elsewhere: nothing of its end leaves this host.
				if err := down(g.Port.Subnet.TapName(g.Port.Index)); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}
			k.end(g.Process, kind.minded)
			ended = append(ended, g.Process)
			id := fleet.GuestID(e.Name())
			if !slices.Contains(k.known, id) {
				k.known = append(k.known, id)
			}
			if k.ended[id] != g.Process {
				k.ended[id] = g.Process
				k.count++
			}
		}
	}
	looked := host.Ticks()
	if err := host.KillAll(members(k.last.Group), 0, looked); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	thaw(k.last.Group)
	for limit := time.Now().Add(stopLimit); len(ended) > 0 && time.Now().Before(limit); time.Sleep(time.Millisecond) {
		ended = slices.DeleteFunc(ended, host.Process.Gone)
	}
	for _, p := range ended {
		fmt.Fprintf(os.Stderr, "process %d of a guest was killed and does not end\n", p.PID)
	}
	if k.noted == k.count {
		return
	}
	s := Stopped{At: time.Now(), Length: k.last.Length, Guests: k.known, Processes: k.ended}
	if err := note.Replace(filepath.Join(k.run, Folder, stoppedFile), s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	k.noted = k.count
}

// end kills a guest's first process and, unless that is minded, all that belong to it.
func (k *process) end(p host.Process, minded bool) {
	handle, err := p.Watch() // its number is not another's
	if err != nil {
		return
	}
	defer handle.Close()
	looked := host.Ticks()
	var all []int
	if !minded {
		all = slices.Concat(host.Family(p.PID), host.Beside(p.PID))
	}
	if err := errors.Join(host.Kill(handle), host.KillAll(all, p.PID, looked)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// down takes a guest's link down. One that is gone is not an error.
func down(link string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("taking the link %s down: %w", link, err)
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(link)
	if err == nil {
		err = unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r)
	}
	if err == nil {
		r.SetUint16(r.Uint16() &^ unix.IFF_UP)
		err = unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("taking the link %s down: %w", link, err)
	}
	return nil
}

// members are the processes in a control group and those in it.
func members(group string) (pids []int) {
	if group == "" {
		return nil
	}
	_ = filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "cgroup.procs" {
			return nil // it has just gone, or is another file
		}
		text, _ := os.ReadFile(path)
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 1 { // 0: of another namespace
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// thaw lets frozen processes of the guests end.
func thaw(group string) {
	if group == "" {
		return
	}
	_ = filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = host.Freezer(path).Set(false) // not every group can be frozen
		}
		return nil
	})
}
