package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"pagurus/fleet"
)

// powerEvery is how often the counters are read. They begin again after at least a minute at full load.
const powerEvery = 5 * time.Second

// powercap is where the kernel shows the counters of processors' energy (RAPL), of Intel and AMD alike.
const powercap = "sys/class/powercap"

// PowerMeter adds up what the processors of this machine use.
type PowerMeter struct {
	root fs.FS

	mu    sync.Mutex
	at    time.Time
	last  map[string]uint64 // by the counter's folder, in microjoules
	work  time.Duration     // of all CPUs since boot, as last read
	power fleet.Power
}

// NewPowerMeter makes a meter, which has read nothing.
func NewPowerMeter() *PowerMeter { return &PowerMeter{root: os.DirFS("/")} }

// Power is what was used since the first call.
func (p *PowerMeter) Power() *fleet.Power {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.at.IsZero() || now.Sub(p.at) >= powerEvery {
		p.at = now
		if err := p.read(); err != nil {
			p.power, p.last = fleet.Power{Trouble: err.Error()}, nil
		}
	}
	out := p.power
	return &out
}

// read adds what was used since the last time.
func (p *PowerMeter) read() error {
	zones, err := packages(p.root)
	if err != nil {
		return err
	}
	work, err := worked(p.root)
	if err != nil {
		return err
	}
	now := make(map[string]uint64, len(zones))
	sum := 0.0
	for _, zone := range zones {
		n, err := number(p.root, path.Join(zone, "energy_uj"))
		if err != nil {
			return fmt.Errorf("this host does not tell the energy that it uses: %w", err)
		}
		now[zone] = n
		was, known := p.last[zone]
		switch {
		case !known:
		case n >= was:
			sum += float64(n - was)
		default: // it began again
			most, err := number(p.root, path.Join(zone, "max_energy_range_uj"))
			if err != nil {
				return fmt.Errorf("this host does not tell the energy that it uses: %w", err)
			}
			sum += float64(max(most, was) - was + n)
		}
	}
	if p.last == nil {
		p.power = fleet.Power{}
	} else {
		p.power.Joules += sum / 1e6
		p.power.Worked += max(0, work-p.work)
	}
	p.last, p.work = now, work
	return nil
}

// packages are the folders of the counters of whole processors. Those of their parts are in theirs, and that of
// the whole machine, where there is one, has them all.
func packages(root fs.FS) (out []string, err error) {
	entries, err := fs.ReadDir(root, powercap)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this host does not tell the energy that it uses: %w", err)
	}
	for _, e := range entries {
		zone := path.Join(powercap, e.Name())
		name, err := fs.ReadFile(root, path.Join(zone, "name"))
		if err == nil && strings.HasPrefix(strings.TrimSpace(string(name)), "package") && strings.HasPrefix(e.Name(), "intel-rapl:") {
			out = append(out, zone)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("this host does not tell the energy that it uses: /sys/class/powercap has no counter of a processor (RAPL), as in most virtual machines")
	}
	return out, nil
}

// number reads a file with one number.
func number(root fs.FS, name string) (uint64, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/%s has %.30q, which is not a number", name, text)
	}
	return n, nil
}

// worked is how long all CPUs have worked since the machine booted, for anybody.
func worked(root fs.FS) (time.Duration, error) {
	text, err := fs.ReadFile(root, "proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat is not as expected: it begins with %.80q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} { // user (with guests), nice, system, interrupts of both kinds
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat is not as expected: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / userHz), nil
}

// userHz is the number of clock ticks per second in /proc: 100 on every Linux platform of Go.
const userHz = 100
