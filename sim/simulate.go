// This file is the command `pagurus simulate`: its flags and reports.
//
// It must not know real clusters: it contacts no controller and writes only the requested
// report. Its tests are those of the command, beside main.

package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/decide/owners"
	"pagurus/decide/placement"
	"pagurus/internal/note"
)

// simulation is the options of `pagurus simulate`.
type simulation struct {
	Config
	model, trace string
	policies     []string
	placement    string
	seed         uint64
	seeds        int
	report       string
	log, json    bool
	out          io.Writer
	say          func(string)
}

// Command returns the command. Tables go to out, progress to say. sizeFlag defines a flag for
// a size in bytes, as all other commands read sizes.
func Command(out io.Writer, say func(string), sizeFlag func(flags *pflag.FlagSet, value *int64, name, usage string)) *cobra.Command {
	s := simulation{Config: Config{Hosts: 1000, For: 24 * time.Hour}, policies: owners.Names(), seed: 1, seeds: 1}
	s.Work.MemoryBytes = 1 << 30
	cmd := &cobra.Command{
		Use:   "simulate [SCENARIO | --model NAME | --trace FILE]",
		Short: "Compare what to do when owners return, with the live planner over modelled machines",
		Long: `Runs the planner of the live controller over modelled machines, links, jobs and
owners, once for each policy, and compares the results.

When owners come and go follows a published model (--model), a recorded trace
(--trace: CSV with host,from,to,load, or the JSON of recorded spot instances), or
the events of a scenario, a folder with the files world and events.

A host notices its owner within a second. A real host then waits for 20 s before
guests have to do more than give way (--grace 20s), and for 15 min before an owner
who stayed counts as gone (--idle-after 15m). Without these flags the model waits for
neither: policies act at once, and hosts are free again at once.`,
		Example: `  pagurus simulate --model nd07cpu --hosts 10000 --jobs 300
  pagurus simulate --model microsoft99 --policy evacuate,predictive --seeds 5 --report out.html
  pagurus simulate --trace owners.csv --policy predictive --json
  pagurus simulate sim/testdata/owner-returns --log`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := cmd.Flags().GetBool("json")
			if err != nil {
				return err
			}
			s.out, s.say, s.json = out, say, asJSON
			return s.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.model, "model", "", "when owners come: a published model, such as nd07cpu or microsoft99; with -daily at its end it has a daily cycle")
	f.StringVar(&s.trace, "trace", "", "when owners come: a file with a recorded trace")
	f.IntVar(&s.Hosts, "hosts", s.Hosts, "how many hosts")
	f.IntVar(&s.Work.Jobs, "jobs", 0, "how many jobs at a time (default: as many as fit on half of the hosts)")
	f.IntVar(&s.Work.Ranks, "ranks", 16, "ranks of each job, one guest and one host a rank")
	f.DurationVar(&s.Work.Time, "job-time", 2*time.Hour, "how long an undisturbed job takes, give or take a half")
	sizeFlag(f, &s.Work.MemoryBytes, "mem", "memory of a guest")
	f.DurationVar(&s.For, "for", s.For, "how much time to simulate")
	f.StringSliceVar(&s.policies, "policy", s.policies, "what happens to guests when an owner returns: "+strings.Join(owners.Names(), ", "))
	f.DurationVar(&s.Machine.Grace, "grace", 0, "how long an owner has to be there before the policy acts; guests are in the lowest class of CPU meanwhile (real hosts: 20s)")
	f.DurationVar(&s.Machine.IdleAfter, "idle-after", 0, "how long an owner who stayed has to be gone before the host is free again (real hosts: 15m)")
	f.StringVar(&s.placement, "placement", "", "spread or longest-idle: how hosts are chosen (default: the policy's own way)")
	f.Uint64Var(&s.seed, "seed", s.seed, "seed of everything random; the same seed gives the same run")
	f.IntVar(&s.seeds, "seeds", s.seeds, "how many runs of each policy, with this seed and those after it")
	f.StringVar(&s.report, "report", "", "write the comparison as a page into this file, too")
	f.BoolVar(&s.log, "log", false, "print everything that happens")
	return cmd
}

// run runs the command. It writes no file but the report.
func (s *simulation) run(cmd *cobra.Command, args []string) error {
	policies, seeds, err := s.parseArgs(cmd, args)
	if err != nil {
		return fmt.Errorf("%w; see `pagurus simulate --help`", err)
	}
	if s.log {
		s.Log = func(line string) { _, _ = fmt.Fprintln(s.out, line) }
	}
	// A run's data stays, and each Step's garbage is short-lived: rarer garbage
	// collection costs little memory and saves a fifth of the time.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	rows, err := Compare(s.Config, policies, seeds, func(r Result) {
		s.say(fmt.Sprintf("%s, seed %d: %d events in %s", r.Policy, r.Seed, r.Events, r.Took.Round(10*time.Millisecond)))
	})
	if err != nil {
		return err
	}
	if s.report != "" {
		if err := s.page(rows); err != nil {
			return err
		}
	}
	if s.json {
		out := json.NewEncoder(s.out)
		out.SetIndent("", "  ")
		return out.Encode(rows)
	}
	if err := Table(s.out, rows); err != nil {
		return err
	}
	for _, line := range Against(rows) {
		if _, err := fmt.Fprintln(s.out, line); err != nil {
			return err
		}
	}
	return nil
}

// parseArgs returns what to run from flags and arguments.
func (s *simulation) parseArgs(cmd *cobra.Command, args []string) ([]owners.Policy, []uint64, error) {
	given := 0
	for _, from := range []bool{len(args) > 0, s.model != "", s.trace != ""} {
		if from {
			given++
		}
	}
	if given != 1 {
		return nil, nil, errors.New("name one of a scenario, --model and --trace")
	}
	if s.seeds < 1 || s.seeds > 10_000 {
		return nil, nil, fmt.Errorf("%d seeds are none, or too many", s.seeds)
	}
	if s.placement != "" {
		var known bool
		if s.Placement, known = placement.Named(s.placement); !known {
			return nil, nil, fmt.Errorf("there is no placement %q: use spread or longest-idle", s.placement)
		}
	}
	if s.Work.Ranks < 1 || s.Work.Time <= 0 || s.Work.Jobs < 0 {
		return nil, nil, fmt.Errorf("%d jobs of %d ranks that take %s cannot be simulated: give 0 or more jobs, 1 or more ranks and a time above 0", s.Work.Jobs, s.Work.Ranks, s.Work.Time)
	}
	if s.Work.MemoryBytes < 1<<20 || s.Work.MemoryBytes > 1<<40 {
		return nil, nil, fmt.Errorf("a guest cannot have %d bytes of memory: give --mem from 1M to 1T", s.Work.MemoryBytes)
	}
	if s.Work.Jobs == 0 {
		s.Work.Jobs = max(1, s.Hosts/2/max(s.Work.Ranks, 1))
	}
	if err := s.owners(cmd, args); err != nil {
		return nil, nil, err
	}
	var policies []owners.Policy
	for _, name := range s.policies {
		p, known := owners.Named(name)
		if !known {
			return nil, nil, fmt.Errorf("there is no policy %q: use %s", name, strings.Join(owners.Names(), ", "))
		}
		policies = append(policies, p)
	}
	if len(policies) == 0 {
		return nil, nil, errors.New("name a policy to simulate")
	}
	var seeds []uint64
	for i := range s.seeds {
		seeds = append(seeds, s.seed+uint64(i))
	}
	return policies, seeds, nil
}

// owners sets when owners come and go. A scenario also sets all other options, except the
// policy, the seed and the hosts' times if given.
func (s *simulation) owners(cmd *cobra.Command, args []string) error {
	switch {
	case s.model != "":
		m, err := Named(s.model)
		s.Owners = m
		return err
	case s.trace != "":
		f, err := os.Open(s.trace)
		if err != nil {
			return fmt.Errorf("reading the trace: %w", err)
		}
		defer f.Close()
		t, err := ReadTrace(f, s.trace)
		s.Owners = t
		return err
	}
	c, err := ReadScenario(args[0])
	if err != nil {
		return err
	}
	if s.Placement != nil {
		c.Placement = s.Placement
	}
	given := s.Machine
	s.Config = c
	if cmd.Flags().Changed("grace") {
		s.Machine.Grace = given.Grace
	}
	if cmd.Flags().Changed("idle-after") {
		s.Machine.IdleAfter = given.IdleAfter
	}
	if !cmd.Flags().Changed("policy") && c.Policy != nil {
		s.policies = []string{c.Policy.Name()}
	}
	if !cmd.Flags().Changed("seed") {
		s.seed = c.Seed
	}
	return nil
}

// page writes the report atomically.
func (s *simulation) page(rows []Row) error {
	var text bytes.Buffer
	err := Page(&text, s.Config, rows)
	if err == nil {
		err = note.Write(s.report, text.Bytes(), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
