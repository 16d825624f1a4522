package owner

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// nonGuestLoad measures the CPU use of everything except Pagurus.
type nonGuestLoad struct {
	config Config
	total  func() (time.Duration, error) // used by the processes that count, since some moment
	table  *table                        // of processes; nil: not needed

	last     time.Duration
	at       time.Time
	scanned  time.Time
	started  bool
	negative time.Duration // negative part of the last difference
}

// scanEvery is the interval of scans for Pagurus's own programs if there are no other
// reasons.
const scanEvery = 5 * time.Second

// littleCPUs is the load below which the kernel threads' part is not determined: there
// may be a thousand, each costing a call. It is below every threshold of a sign.
const littleCPUs = 0.05

func openNonGuestLoad(c Config) (*nonGuestLoad, error) {
	o := &nonGuestLoad{config: c}
	t, err := newTable(c)
	if err != nil {
		return nil, err
	}
	o.table = t
	switch group, grouped := groupOf(c.Scope); {
	case c.Scope == Machine:
		o.total = o.machine
	case c.Scope == Network:
		o.total = o.network
	case grouped:
		o.total = func() (time.Duration, error) { return groupUsed(group) }
	default:
		_, err := ParseScope(string(c.Scope))
		return nil, err
	}
	return o, nil
}

// use returns the average CPUs used by others since the last call. look: also find listed
// programs.
func (o *nonGuestLoad) use(look bool) (float64, error) {
	now := time.Now() // its monotonic part counts: setting the clock has no effect
	due := now.Sub(o.scanned) >= scanEvery
	if due {
		o.scanned = now
	}
	o.table.names = look
	if o.config.Scope != Network && (look || o.config.Scope == Machine && due) {
		if err := o.table.scan(); err != nil {
			return 0, err
		}
	}
	total, err := o.total()
	if err != nil {
		o.started = false
		return 0, err
	}
	used, took := total-o.last, now.Sub(o.at)
	if o.config.Scope == Machine {
		if used, err = o.withoutKernel(used, took, due); err != nil {
			return 0, err
		}
	}
	early := !o.started
	o.last, o.at, o.started = total, now, true
	if early || took <= 0 {
		return 0, errEarly
	}
	// The machine's and the groups' accounts are not simultaneous: a negative difference
	// is subtracted from the next one.
	used -= o.negative
	o.negative = min(max(0, -used), took/10)
	return max(0, used.Seconds()/took.Seconds()), nil
}

// withoutKernel subtracts the kernel threads' use, if it may matter. due: always
// subtract, so that the next difference covers only a short time.
func (o *nonGuestLoad) withoutKernel(used, took time.Duration, due bool) (time.Duration, error) {
	much := used.Seconds() > littleCPUs*took.Seconds()
	if !much && !due {
		return used, nil
	}
	if !due && !o.table.names {
		if err := o.table.scan(); err != nil { // to find new ones
			return 0, err
		}
	}
	if by := o.table.account(kernels); much {
		used -= by
	}
	return used, nil
}

// machine is the CPUs' busy time, without Pagurus's.
func (o *nonGuestLoad) machine() (time.Duration, error) {
	busy, err := busy("/proc/stat")
	if err != nil {
		return 0, err
	}
	if o.config.Used != nil {
		own, err := o.config.Used()
		if err != nil {
			return 0, fmt.Errorf("the guests' CPU use is unknown: %w", err)
		}
		busy -= own
	}
	return busy - o.table.used(), nil
}

// network is the use by the namespace's processes.
func (o *nonGuestLoad) network() (time.Duration, error) {
	if err := o.table.scan(); err != nil {
		return 0, err
	}
	return o.table.used(), nil
}

// running returns which listed programs ran at the last scan.
func (o *nonGuestLoad) running(listed []string) []string {
	var out []string
	for _, name := range listed {
		if o.table.runs(name) {
			out = append(out, name)
		}
	}
	return out
}

// userHz is the unit of times in /proc: 100 on every Linux platform of Go.
const userHz = 100

func ticks(n uint64) time.Duration { return time.Duration(n) * time.Second / userHz }

// busy reads the time that all CPUs spent on programs: user, nice and system, which
// includes guests under KVM.
func busy(file string) (time.Duration, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	var buffer [256]byte // only the first line is needed; the rest grows with the CPUs
	n, err := f.Read(buffer[:])
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(buffer[:n], []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0, fmt.Errorf("%s is not as expected", file)
	}
	var sum uint64
	for _, field := range fields[1:4] {
		v, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += v
	}
	return ticks(sum), nil
}

// groupUsed is a cgroup's CPU time, of either version.
func groupUsed(group string) (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", group, "cpu.stat"))
	if err == nil {
		for line := range strings.Lines(string(text)) {
			if v, found := strings.CutPrefix(line, "usage_usec "); found {
				n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				return time.Duration(n) * time.Microsecond, err
			}
		}
	}
	for _, tree := range []string{"cpuacct", "cpu,cpuacct"} {
		text, err = os.ReadFile(filepath.Join("/sys/fs/cgroup", tree, group, "cpuacct.usage"))
		if err == nil {
			n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			return time.Duration(n), err
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("there is no control group %s with an account of CPU time", group)
	}
	return 0, err
}
