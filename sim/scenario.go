package sim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"pagurus/decide/owners"
	"pagurus/fleet"
)

// The files of a scenario's folder. README describes it.
const (
	worldFile  = "world"  // one setting a line: name, value
	eventsFile = "events" // one cue a line: when, host, what, load
	traceFile  = "trace"  // of owners; optional
	jobsFile   = "jobs"   // one job a line; optional
	callsFile  = "calls"  // of programs for more guests, one a line; optional
	goldenFile = "log"    // the expected log, once checked by a person
)

// ReadScenario reads a scenario from its folder.
func ReadScenario(folder string) (Config, error) {
	var c Config
	world, err := os.ReadFile(filepath.Join(folder, worldFile))
	if err != nil {
		return c, fmt.Errorf("reading the scenario %s, a folder with the file %q in it: %w", folder, worldFile, err)
	}
	if err := c.world(world); err != nil {
		return c, fmt.Errorf("%s, %w", filepath.Join(folder, worldFile), err)
	}
	events, err := os.ReadFile(filepath.Join(folder, eventsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("reading the scenario: %w", err)
	}
	if err := c.events(events); err != nil {
		return c, fmt.Errorf("%s, %w", filepath.Join(folder, eventsFile), err)
	}
	jobs, err := os.ReadFile(filepath.Join(folder, jobsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("reading the scenario: %w", err)
	}
	if err := c.readSubmissions(jobs); err != nil {
		return c, fmt.Errorf("%s, %w", filepath.Join(folder, jobsFile), err)
	}
	calls, err := os.ReadFile(filepath.Join(folder, callsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("reading the scenario: %w", err)
	}
	if err := c.readCalls(calls); err != nil {
		return c, fmt.Errorf("%s, %w", filepath.Join(folder, callsFile), err)
	}
	trace, err := os.Open(filepath.Join(folder, traceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("reading the scenario: %w", err)
	}
	defer trace.Close()
	t, err := ReadTrace(trace, filepath.Join(folder, traceFile))
	if err == nil {
		c.Owners = t
	}
	return c, err
}

// lines calls each with the words of every nonempty line, and adds line numbers to
// errors.
func lines(text []byte, each func(words []string) error) error {
	in := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; in.Scan(); n++ {
		line, _, _ := strings.Cut(in.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := each(words); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return in.Err()
}

// world parses the settings.
func (c *Config) world(text []byte) error {
	settings := c.settings()
	err := lines(text, func(words []string) error {
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == words[0] })
		if i < 0 {
			return fmt.Errorf("there is no setting %q: there are %s", words[0], names(settings))
		}
		if len(words) != 2 {
			return fmt.Errorf("%s has one value, and here are %d", words[0], len(words)-1)
		}
		if err := settings[i].set(words[1]); err != nil {
			return fmt.Errorf("%s cannot be %q: %w", words[0], words[1], err)
		}
		return nil
	})
	if err == nil && (c.Hosts == 0 || c.For == 0) {
		return errors.New("which has to say hosts and for at least")
	}
	return err
}

type setting struct {
	name string
	set  func(string) error
}

func names(of []setting) string {
	var out []string
	for _, s := range of {
		out = append(out, s.name)
	}
	return strings.Join(out, ", ")
}

func (c *Config) settings() []setting {
	number := func(to *int) func(string) error {
		return func(s string) (err error) {
			if *to, err = strconv.Atoi(s); err == nil && *to < 0 {
				err = errors.New("it is negative")
			}
			return err
		}
	}
	bytes := func(to func(int64)) func(string) error {
		return func(s string) error {
			n, err := size(s)
			to(n)
			return err
		}
	}
	last := func(to *time.Duration) func(string) error {
		return func(s string) (err error) {
			if *to, err = time.ParseDuration(s); err == nil && *to < 0 {
				err = errors.New("it is negative")
			}
			return err
		}
	}
	return []setting{
		{"seed", func(s string) (err error) { c.Seed, err = strconv.ParseUint(s, 10, 64); return err }},
		{"for", last(&c.For)}, {"hosts", number(&c.Hosts)}, {"cpus", number(&c.Machine.CPUs)},
		{"memory", bytes(func(n int64) { c.Machine.MemoryBytes = n })}, {"link", bytes(func(n int64) { c.Machine.BytesPerSecond = float64(n) })},
		{"checkpoint", last(&c.Checkpoint)}, {"lease", last(&c.Machine.Lease)}, {"boot", last(&c.Machine.Boot)}, {"sense", last(&c.Machine.Sense)}, {"grace", last(&c.Machine.Grace)}, {"idle-after", last(&c.Machine.IdleAfter)},
		{"jobs", number(&c.Work.Jobs)}, {"ranks", number(&c.Work.Ranks)}, {"job-time", last(&c.Work.Time)}, {"guest-cpus", number(&c.Work.CPUs)},
		{"guest-memory", bytes(func(n int64) { c.Work.MemoryBytes = n })}, {"dirty", bytes(func(n int64) { c.Work.Dirty = float64(n) })},
		{"owners", func(s string) error {
			m, err := Named(s)
			c.Owners = m
			return err
		}},
		{"policy", func(s string) error {
			p, ok := owners.Named(s)
			if !ok {
				return fmt.Errorf("there are %s", strings.Join(owners.Names(), ", "))
			}
			c.Policy = p
			return nil
		}},
	}
}

// size parses bytes: a number with KiB, MiB or GiB.
func size(s string) (int64, error) {
	unit := int64(1)
	for name, u := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if cut, has := strings.CutSuffix(s, name); has {
			s, unit = cut, u
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<50/unit {
		return 0, errors.New("give bytes, or something like 512MiB")
	}
	return n * unit, nil
}

// events parses the cues.
func (c *Config) events(text []byte) error {
	return lines(text, func(words []string) error {
		if len(words) < 3 {
			return errors.New("an event is when, which host and what: 90s host1 returns 2.5")
		}
		at, err := time.ParseDuration(words[0])
		if err != nil || at < 0 {
			return fmt.Errorf("%q is not a time since the beginning, such as 90s", words[0])
		}
		cue := Cue{At: at, Host: fleet.HostID(words[1]), Do: words[2]}
		n, err := strconv.Atoi(strings.TrimPrefix(words[1], "host"))
		if err != nil || n < 1 || n > c.Hosts || fleet.HostID(fmt.Sprintf("host%d", n)) != cue.Host {
			return fmt.Errorf("there is no host %s: they are host1 to host%d", words[1], c.Hosts)
		}
		if !slices.Contains(cueWords, cue.Do) {
			return fmt.Errorf("%q cannot happen to a host: there is %s", cue.Do, strings.Join(cueWords, ", "))
		}
		switch {
		case cue.Do == returns && len(words) == 4:
			if cue.Load, err = strconv.ParseFloat(words[3], 64); err != nil || !(cue.Load >= 0 && cue.Load <= 1<<16) {
				return fmt.Errorf("%q is not a number of CPUs", words[3])
			}
		case cue.Do == returns:
			return errors.New("say how many CPUs the owner uses: 90s host1 returns 2.5")
		case cue.Do == notes && len(words) == 4:
			if cue.In, err = time.ParseDuration(words[3]); err != nil || cue.In <= 0 {
				return fmt.Errorf("%q is not a time, such as 2m", words[3])
			}
		case cue.Do == notes:
			return errors.New("say after which time the host goes away: 90s host1 notice 2m")
		case len(words) != 3:
			return fmt.Errorf("%q is one word too many", words[3])
		}
		c.Script = append(c.Script, cue)
		return nil
	})
}
