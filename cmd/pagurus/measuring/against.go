package measuring

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/act/machine"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/programs"
	"pagurus/bench/stats"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/show/cli"
)

// byHand is the target of moves that are made by hand, and what --against names.
const byHand = "qemu"

const (
	againstImage = "openmpi"
	againstKind  = string(fleet.VM)
	// busyShare is which part of a guest's memory its rank changes all the time.
	busyShare = 4
	// stallGoal is the goal for the stall of a move beside one by hand, at the median.
	stallGoal = 0.3
	// leastDown is QEMU's unit of downtime: less than that it calls 0.
	leastDown = time.Millisecond
)

// against is what is asked for of moves beside those by hand.
type against struct {
	whom    string
	between []string
	via     string
	beside  string
	how     []string // of Pagurus's moves, as flags of migrate
	read    int64    // bytes of files that the ranks have read before
}

// contest is a bench.Place that moves the second of two guests, from one host to another, by
// Pagurus or by hand. The other one stays. Each run has guests of its own, so that others take nothing from it.
type contest struct {
	drive.Pagurus
	from, to fleet.Host
	stay     fleet.Host // of the guest that does not move; from, if no other was chosen
	via      []string   // runs a command on a host: {host} and {address} stand for it
	agent    func(fleet.Host) (string, error)
	image    fleet.Image
	memory   int64
	read     int64    // of files, by each rank before the move
	how      []string // of the moves, as flags of migrate
}

func (c *contest) Open(context.Context, bench.Program, []string) (bench.Round, error) { return c, nil }

func (c *contest) Close() error { return nil }

func (c *contest) Run(ctx context.Context, target string) (string, error) {
	move := c.byPagurus
	if target == byHand {
		move = c.byHand
	}
	figures, err := move(ctx)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(figures)
	return string(text), err
}

// words are the arguments of the program that both ranks run.
func (c *contest) words() []string {
	words := []string{fmt.Sprint(c.memory / busyShare >> 20)}
	if c.read > 0 {
		words = append(words, fmt.Sprint(c.read>>20))
	}
	return words
}

// moveAgainst is the program of the record.
func moveAgainst(words []string) bench.Program {
	return bench.Program{
		Name: "move", Command: "./" + programs.BusyName + " " + strings.Join(words, " "),
		Read: func(text string) (got bench.Result, err error) {
			err = json.Unmarshal([]byte(text), &got.Figures)
			return got, err
		},
		Figures: []bench.Figure{
			{Name: "total_s", Says: "time of a move", Unit: "s", Sense: stats.Slower},
			{Name: "down_s", Says: "downtime, by QEMU", Unit: "s", Sense: stats.Slower},
			{Name: "stall_s", Says: "stall: longest gap of a rank", Unit: "s", Sense: stats.Slower},
			{Name: "sent_mib", Says: "memory sent", Unit: "MiB", Sense: stats.Slower},
		},
	}
}

// byPagurus moves the guest as a person does who has Pagurus.
func (c *contest) byPagurus(ctx context.Context) (figures map[string]float64, err error) {
	args := append(c.job(c.stay, c.from), "-n", "2", "--guests", "2", "--", "./"+programs.BusyName)
	args = append(args, c.words()...)
	err = c.During(ctx, "START", func(job string) error {
		moves, err := c.mover(ctx, job)
		if err == nil {
			err = c.sampled(ctx, moves)
		}
		if err != nil {
			return err
		}
		said := func() (string, error) { return c.Type(ctx, "logs", job) }
		stall, err := stalled(ctx, said, func() error {
			_, err := c.Type(ctx, append([]string{"migrate", string(moves), "--to", string(c.to.ID), "--wait"}, c.how...)...)
			return err
		})
		if err != nil {
			return err
		}
		m, took, err := c.LastMove(ctx)
		figures = figuresOf(took, m.Cost.Downtime, stall, m.Cost.SentBytes)
		return err
	}, args...)
	return figures, err
}

// mover is the guest of a job that moves: the second, since the first one says how long it had to
// wait, by its own clock.
func (c *contest) mover(ctx context.Context, job string) (fleet.GuestID, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	moves := fleet.GuestID(job + "g1")
	if home := s.Guests[moves].Home; home != c.from.ID {
		return "", fmt.Errorf("guest %s was placed on %s and not on %s: choose other hosts with --between and --beside", moves, home, c.from.ID)
	}
	return moves, nil
}

// sampleLimit is how long the first sample of a guest may take; most take some ten seconds.
const sampleLimit = time.Minute

// sampled waits for the first sample of a guest's memory: a job that has run for half a minute has one.
func (c *contest) sampled(ctx context.Context, guest fleet.GuestID) error {
	for begun := time.Now(); ; {
		s, err := c.Snapshot(ctx)
		if err != nil {
			return err
		}
		if s.Hosts[c.from.ID].Facts.Guests[guest].Profile != nil {
			return nil
		}
		if time.Since(begun) > sampleLimit {
			return fmt.Errorf("the memory of guest %s was not sampled within %s: its host is too busy", guest, sampleLimit)
		}
		if err := drive.Pause(ctx, settleTime/4); err != nil {
			return err
		}
	}
}

// hosts are those that take part.
func (c *contest) hosts() []fleet.Host {
	all := []fleet.Host{c.from, c.to}
	if c.stay.ID != c.from.ID {
		all = append(all, c.stay)
	}
	return all
}

// job is what `pagurus run` is told of a job on hosts.
func (c *contest) job(at ...fleet.Host) []string {
	var on []string
	for _, h := range at {
		on = append(on, string(h.ID))
	}
	return []string{"--kind", againstKind, "--no-trace", "--cpus", "1", "--mem", fmt.Sprint(c.memory), "--image", c.image.Name, "--on", strings.Join(on, ",")}
}

func figuresOf(took, down, stall time.Duration, sent int64) map[string]float64 {
	return map[string]float64{"total_s": took.Seconds(), "down_s": max(down, leastDown).Seconds(), "stall_s": stall.Seconds(), "sent_mib": float64(sent) / (1 << 20)}
}

// afterMove is how long after a move a gap still counts as its own.
const afterMove = 2 * time.Second

// stalled gives the longest gap of a job's ranks while something is done with it, by its
// own account and clock. said gives all that the job has said so far.
func stalled(ctx context.Context, said func() (string, error), do func() error) (time.Duration, error) {
	if err := drive.Pause(ctx, settleTime); err != nil {
		return 0, err
	}
	gaps := func() ([]drive.Gap, error) {
		text, err := said()
		if err != nil {
			return nil, err
		}
		return drive.Gaps(text)
	}
	before, err := gaps()
	if err != nil {
		return 0, err
	}
	if len(before) == 0 {
		return 0, errors.New("the job says nothing of its gaps")
	}
	begun := time.Now()
	if err := do(); err != nil {
		return 0, err
	}
	until := before[len(before)-1].Ended.Add(time.Since(begun) + afterMove)
	for limit := time.Now().Add(time.Minute); ; {
		now, err := gaps()
		if err != nil {
			return 0, err
		}
		if longest, whole := longestSince(now, len(before), until); whole {
			return longest, nil
		}
		if time.Now().After(limit) {
			return 0, errors.New("the job says nothing any more: its guest was not moved well")
		}
		if err := drive.Pause(ctx, settleTime/10); err != nil {
			return 0, err
		}
	}
}

// longestSince gives the longest of a job's gaps but for the first ones, and whether they
// reach to a time.
func longestSince(all []drive.Gap, first int, until time.Time) (longest time.Duration, whole bool) {
	if len(all) <= first || !all[len(all)-1].Ended.After(until) {
		return 0, false
	}
	return slices.MaxFunc(all[first:], func(a, b drive.Gap) int { return cmp.Compare(a.Took, b.Took) }).Took, true
}

// beside measures moves by Pagurus beside moves by hand.
func (o *overhead) beside(ctx context.Context, cmd *cobra.Command, a against) error {
	o.suite, o.targets = "stream", []string{againstKind}
	if err := o.check(); err != nil {
		return fmt.Errorf("%w: see `pagurus bench migration --help`", err)
	}
	return o.within(ctx, "move", func() error {
		c := &contest{Pagurus: o.where, memory: o.memory, read: a.read, how: a.how}
		if err := c.choose(o.hosts, a); err != nil {
			return err
		}
		if c.via = strings.Fields(a.via); o.lab && a.via == "" {
			c.via = []string{o.where.Program, "lab", "exec", "{host}", "--"}
		} else if a.via == "" {
			c.via = []string{"ssh", "{host}", "sudo"}
		}
		c.agent = o.agentOn
		if err := o.seeTo(ctx); err != nil {
			return err
		}
		var err error
		if c.image, err = o.where.Image(ctx, o.image); err != nil {
			return err
		}
		if err := o.where.Compile(ctx, o.image, programs.BusyName, programs.BusySource, "mpicc", "-O2"); err != nil {
			return err
		}
		for _, h := range c.hosts() { // so that all have the image
			if _, err := o.where.Type(ctx, append([]string{"run", "-n", "1"}, append(c.job(h), "--", "true")...)...); err != nil {
				return err
			}
		}
		o.guests = o.settings()
		hand := o.guests[againstKind]
		hand.Kind = "QEMU by hand"
		o.guests[byHand], o.targets = hand, []string{byHand, againstKind}
		o.remark("moves are from %s to %s, beside a guest on %s; by hand guests have QEMU's and Linux's own settings, and bridges that learn", c.from.ID, c.to.ID, c.stay.ID)
		if len(c.how) > 0 {
			o.remark("Pagurus moves with %s", strings.Join(c.how, " "))
		}
		o.sum = goalNote
		return o.measure(ctx, cmd, &bench.Experiment{Place: c, Spec: bench.Spec{Name: "migration", Ranks: 2, Programs: []bench.Program{moveAgainst(c.words())}}})
	})
}

// agentOn is the agent's program on a host: the one beside this program where a host is a
// namespace of this machine, else the one that is installed there.
func (o *overhead) agentOn(at fleet.Host) (string, error) {
	if at.Facts.Boot != machine.Boot() {
		return roles.AgentProgram, nil
	}
	return o.Beside(roles.AgentProgram)
}

// choose chooses the hosts.
func (c *contest) choose(hosts map[fleet.HostID]fleet.Host, a against) error {
	able := slices.DeleteFunc(slices.Sorted(maps.Keys(hosts)), func(id fleet.HostID) bool { return !cli.Usable(hosts[id], fleet.VM) })
	for _, id := range slices.Concat(a.between, strings.Fields(a.beside)) {
		if !slices.Contains(able, fleet.HostID(id)) {
			return fmt.Errorf("%s is no host that runs virtual machines now: `pagurus host ls` lists them", id)
		}
	}
	if len(a.between) > 0 {
		able = []fleet.HostID{fleet.HostID(a.between[0]), fleet.HostID(a.between[1])}
	}
	if len(able) < 2 {
		return errors.New("fewer than two hosts run virtual machines now: `pagurus host ls` lists them")
	}
	c.from, c.to = hosts[able[0]], hosts[able[1]]
	c.stay = c.from
	if a.beside != "" {
		c.stay = hosts[fleet.HostID(a.beside)]
	}
	if c.stay.ID == c.to.ID {
		return fmt.Errorf("--beside %s: that is where the other guest moves to; choose a third host, or leave it out", a.beside)
	}
	return nil
}

// goalNote holds the stalls of all pairs against their goal.
func goalNote(r *bench.Record) []string {
	theirs, rounds := r.Samples("move", "stall_s", byHand)
	hand := map[int]float64{}
	for i, round := range rounds {
		hand[round] = theirs[i]
	}
	var ratios []float64
	ours, rounds := r.Samples("move", "stall_s", againstKind)
	for i, round := range rounds {
		if v := hand[round]; v > 0 {
			ratios = append(ratios, ours[i]/v)
		}
	}
	m, err := stats.Median(ratios, r.Spec.Confidence)
	if err != nil {
		return nil // the table says that there are too few
	}
	verdict := "reached"
	switch {
	case m.Low > stallGoal:
		verdict = "missed"
	case m.Value > stallGoal:
		verdict = "within the interval"
	}
	return []string{fmt.Sprintf("stall of a move beside one by hand, median of the pairs: %s; the goal of at most %g is %s", m, stallGoal, verdict)}
}

// check says what is wrong with it.
func (a against) check(chosen bool) error {
	switch {
	case a.whom == "" && (a.via != "" || a.beside != "" || len(a.between)+len(a.how) > 0 || a.read != 0):
		return errors.New("--between, --beside, --via, --read, --mode and --page-cache belong to --against " + byHand)
	case a.whom == "":
		return nil
	case a.whom != byHand:
		return fmt.Errorf("--against %q: there is only %s", a.whom, byHand)
	case chosen:
		return errors.New("--against " + byHand + " moves virtual machines: leave out --targets")
	case len(a.between) != 0 && (len(a.between) != 2 || a.between[0] == a.between[1]):
		return errors.New("--between takes two hosts, as host1,host2")
	}
	return nil
}

// programFile is where the program is on this machine.
func (c *contest) programFile() string { return filepath.Join(c.Dir, programs.BusyName) }
