package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"pagurus/bench/drive"
	"pagurus/bench/stats"
	"pagurus/fleet"
)

// Confidence is the confidence of every quoted interval.
const Confidence = 0.95

// Promise is a figure, and what was promised of it; of some nothing was.
type Promise struct {
	stats.Interval
	AtMost  *float64 `json:"at_most,omitempty"`
	AtLeast *float64 `json:"at_least,omitempty"`
}

// Sitting says when something was measured, and with which commit and kernel.
type Sitting struct {
	Begun       time.Time `json:"begun"`
	Commit      string    `json:"commit"`
	Against     string    `json:"against,omitempty"` // the commit that this one was held against
	Kernel      string    `json:"kernel"`
	Accelerator string    `json:"accelerator,omitempty"` // of virtual machines; empty: not known, as in old records
}

// Promises is one run that measures promises: the measured Pagurus, and the results.
type Promises struct {
	drive.Pagurus
	Repeat int // how often each comparison is repeated
	Record Record
	Missed []string // figures that are not as promised
	Trial  string   // that is under way
	File   string   // where the record is kept; empty: nowhere
	// Arms are the only ones to measure; empty: all.
	Arms []string
	// Unjudged is a run that only samples: another one says what came of it.
	Unjudged bool
	// Lacks says what an arm's failure means that is lacking in what is measured; empty: it is another failure. Such an arm is left out,
	// which Left says, and others are measured. nil: every failure ends a trial.
	Lacks func(failure string) string
	Left  []string
	// Accelerator is what runs virtual machines in the labs so far; empty: not known.
	Accelerator string
}

// Trial is one of the things that are measured for what is promised of them.
type Trial struct {
	Name, Says string
	Measure    func(context.Context) error
	Lab        []string // flags of the lab that it needs; nil: the usual ones
	Bare       bool     // it needs no lab
}

// ErrMissed: all was measured, and some of it is not as promised.
var ErrMissed = errors.New("not as promised")

// Carry carries trials out in a lab, or more where they need other labs: those that follow each
// other and need the same share one. After the first that fails there are no more.
func (r *Promises) Carry(ctx context.Context, trials []Trial, usual []string) error {
	for n := 0; len(trials) > 0; trials = trials[n:] {
		flags, bare := trials[0].Lab, trials[0].Bare
		if n = slices.IndexFunc(trials, func(t Trial) bool { return !slices.Equal(t.Lab, flags) || t.Bare != bare }); n < 0 {
			n = len(trials)
		}
		if flags == nil {
			flags = usual
		}
		measure := func(s fleet.Snapshot, _ bool) error {
			r.RunBy(acceleratorOf(s, hardwareVirtualization()))
			for _, t := range trials[:n] {
				r.Trial = t.Name
				if err := errors.Join(t.Measure(ctx), r.Save()); err != nil {
					return fmt.Errorf("%s: %w", t.Name, err)
				}
			}
			return nil
		}
		var err error
		if bare {
			err = measure(fleet.Snapshot{}, false)
		} else {
			err = r.In(ctx, drive.Lab{Flags: flags}, measure)
		}
		if err != nil {
			return err
		}
	}
	if len(r.Missed) > 0 {
		return fmt.Errorf("%w: %s", ErrMissed, strings.Join(r.Missed, "; "))
	}
	return nil
}

// RunBy notes what runs virtual machines; empty: not known.
func (r *Promises) RunBy(accelerator string) {
	if accelerator == "" {
		return
	}
	r.Accelerator = accelerator
	if n := len(r.Record.Sittings); n > 0 {
		r.Record.Sittings[n-1].Accelerator = accelerator
	}
}

// bareKVM is an accelerator whose figures are not those of usual machines: what guests' kernels do
// is interpreted there.
const bareKVM = "KVM without hardware virtualization"

// acceleratorOf says what runs virtual machines in a cluster.
func acceleratorOf(s fleet.Snapshot, hardware bool) (accelerator string) {
	for _, h := range s.Hosts {
		for _, can := range h.Facts.Abilities { // of what no accelerator runs it is empty
			accelerator = max(accelerator, can.Accelerator) // "tcg" of one is said of all
		}
	}
	if accelerator == fleet.KVM && !hardware {
		return bareKVM
	}
	return accelerator
}

// hardwareVirtualization reports whether this machine's processors have it.
func hardwareVirtualization() bool {
	text, _ := os.ReadFile("/proc/cpuinfo")
	return slices.ContainsFunc(strings.Fields(string(text)), func(word string) bool { return word == "vmx" || word == "svm" })
}

// NewPromises returns a run without measurements.
func NewPromises(p drive.Pagurus, repeat int) *Promises {
	return &Promises{Pagurus: p, Repeat: repeat, Record: Record{
		Spec: Spec{Name: "promises", Confidence: Confidence}, Guests: map[string]Setting{}, Promised: map[string]Promise{},
	}}
}

// Sit begins a sitting on this machine with the Pagurus of a commit.
func (r *Promises) Sit(commit string) {
	here, now := Here(commit), time.Now().UTC()
	if len(r.Record.Sittings) == 0 {
		r.Record.Begun, r.Record.Machine, r.Record.Command, r.Record.Spec.Runs = now, here, os.Args, r.Repeat
	}
	r.Record.Complete = false
	r.Record.Sittings = append(r.Record.Sittings, Sitting{Begun: now, Commit: commit, Kernel: here.Kernel})
}

// Continue takes over what a record that was kept in a file holds, if it is there:
// what is measured now is added to it. Both sides of a comparison are sampled in the
// same sitting, so that their ratio stands. A record that cannot be read is an error.
func (r *Promises) Continue(file string) error {
	was, err := Load(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("going on with a record: %w", err)
	}
	none := r.Record
	if r.Record = *was; was.Promised == nil {
		r.Record.Promised = none.Promised
	}
	if was.Guests == nil {
		r.Record.Guests = none.Guests
	}
	return nil
}

// Save writes the record to its file, if there is anything in it.
func (r *Promises) Save() error {
	if r.File == "" || len(r.Record.Runs)+len(r.Record.Moves) == 0 {
		return nil
	}
	return r.Record.Write(r.File)
}

// Sample keeps one measured value. Its name is that of a target, and behind "_" that of
// the figure.
func (r *Promises) Sample(name string, v float64) {
	i := strings.LastIndex(name, "_")
	r.AddRun(Run{Round: len(r.Samples(name)), Program: r.Trial, Target: name[:i], Begun: time.Now().UTC(), Figures: map[string]float64{name[i+1:]: v}})
}

// Samples are the values of a sample in the order they were taken.
func (r *Promises) Samples(name string) (values []float64) {
	for _, run := range r.Record.Runs {
		for figure, v := range run.Figures {
			if name == run.Target+"_"+figure {
				values = append(values, v)
			}
		}
	}
	return values
}

// AddRun keeps a run, and has the spec name what is in it.
func (r *Promises) AddRun(run Run) {
	spec := &r.Record.Spec
	if !slices.Contains(spec.Targets, run.Target) {
		spec.Targets = append(spec.Targets, run.Target)
	}
	r.Declare(Program{Name: run.Program})
	i := slices.IndexFunc(spec.Programs, func(p Program) bool { return p.Name == run.Program })
	for _, name := range slices.Sorted(maps.Keys(run.Figures)) {
		if p := &spec.Programs[i]; !slices.ContainsFunc(p.Figures, func(f Figure) bool { return f.Name == name }) {
			unit := name[strings.LastIndex(name, "_")+1:]
			p.Figures = append(p.Figures, Figure{Name: name, Says: name, Unit: unit, Sense: stats.Slower})
		}
	}
	r.Record.Runs = append(r.Record.Runs, run)
}

// Declare has the spec name programs, each once.
func (r *Promises) Declare(all ...Program) {
	for _, p := range all {
		if !slices.ContainsFunc(r.Record.Spec.Programs, func(q Program) bool { return q.Name == p.Name }) {
			r.Record.Spec.Programs = append(r.Record.Spec.Programs, p)
		}
	}
}

// Arm is one side of a comparison. It measures once, and names its figures.
type Arm struct {
	Name    string
	Measure func(context.Context) (map[string]float64, error)
}

// Seconds is an arm whose figure is a time.
func Seconds(name string, measure func(context.Context) (time.Duration, error)) Arm {
	return Arm{name, func(ctx context.Context) (map[string]float64, error) {
		took, err := measure(ctx)
		return map[string]float64{"s": took.Seconds()}, err
	}}
}

// arms are the place of an experiment whose targets measure by themselves.
type arms []Arm

func (a arms) Open(context.Context, Program, []string) (Round, error) { return a, nil }

func (a arms) Close() error { return nil }

func (a arms) Run(ctx context.Context, target string) (string, error) {
	i := slices.IndexFunc(a, func(arm Arm) bool { return arm.Name == target })
	figures, err := a[i].Measure(ctx)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(figures)
	return string(text), err
}

func readFigures(text string) (got Result, err error) {
	err = json.Unmarshal([]byte(text), &got.Figures)
	return got, err
}

// InTurn is Rounds, as often as comparisons are repeated.
func (r *Promises) InTurn(ctx context.Context, then func(), sides ...Arm) error {
	return r.Rounds(ctx, r.Repeat, then, sides...)
}

// Within is InTurn for so long: where each round takes long, there are fewer of them, and two at least.
func (r *Promises) Within(ctx context.Context, limit time.Duration, sides ...Arm) error {
	const least = 2 // as Rounds has it
	begun := time.Now()
	if err := r.Rounds(ctx, least, nil, sides...); err != nil {
		return err
	}
	took := time.Since(begun)
	more := max(0, min(r.Repeat-least, int((limit-took)/max(took/least, 1))))
	if more < r.Repeat-least {
		more -= more % least
		fmt.Printf("  %s: %d rounds in place of %d, so that it takes %s\n", r.Trial, least+more, r.Repeat, limit)
	}
	if more == 0 {
		return nil
	}
	return r.Rounds(ctx, more, nil, sides...)
}

// Rounds measures arms in turn, as an experiment that ends with the first failure, at least
// twice: once has no interval. Only whole rounds are kept, so that arms stay in step. After
// each of them what is to be done then is done, and the record is kept.
func (r *Promises) Rounds(ctx context.Context, times int, then func(), sides ...Arm) error {
	if len(r.Arms) > 0 {
		all := len(sides)
		sides = slices.DeleteFunc(slices.Clone(sides), func(a Arm) bool { return !r.Chosen(a.Name) })
		if len(sides) == 0 {
			return nil
		}
		if len(sides) < all {
			then = nil // it looks at all
		}
	}
	for len(sides) > 0 {
		err, failed := r.rounds(ctx, times, then, sides), (*armFailure)(nil)
		if r.Lacks == nil || !errors.As(err, &failed) {
			return err
		}
		what := r.Lacks(failed.why)
		if what == "" {
			return err
		}
		r.Left = append(r.Left, fmt.Sprintf("%s %s, which lacks %s", r.Trial, failed.arm, what))
		fmt.Printf("  left out: %s\n", r.Left[len(r.Left)-1])
		sides, then = slices.DeleteFunc(slices.Clone(sides), func(a Arm) bool { return a.Name == failed.arm }), nil
		delete(r.Record.Guests, failed.arm)
	}
	return nil
}

// armFailure is the failure that ended rounds.
type armFailure struct{ arm, why string }

// Error names the arm.
func (f *armFailure) Error() string { return f.arm + ": " + f.why }

func (r *Promises) rounds(ctx context.Context, times int, then func(), sides []Arm) error {
	before := 0
	for _, run := range r.Record.Runs {
		if run.Program == r.Trial {
			before = max(before, run.Round+1)
		}
	}
	e := Experiment{Place: arms(sides), Spec: Spec{
		Runs: max(times, 2), Seed: uint64(before) + 1, Confidence: Confidence, Programs: []Program{{Name: r.Trial, Read: readFigures}},
	}}
	for _, s := range sides {
		e.Spec.Targets = append(e.Spec.Targets, s.Name)
		if s.Name != sides[0].Name {
			r.Record.Guests[s.Name] = Setting{Beside: sides[0].Name}
		}
	}
	e.Say = func(run Run) {
		fmt.Printf("  %s %d of %d: %s%s\n", run.Program, run.Round+1, e.Spec.Runs, run.Target, run.Given())
	}
	e.KeepRun = func() error {
		n := len(e.Record.Runs)
		if last := e.Record.Runs[n-1]; last.Failure != "" {
			return &armFailure{last.Target, last.Failure}
		}
		if e.Record.Complete || n%len(sides) != 0 {
			return nil
		}
		for _, run := range e.Record.Runs[n-len(sides):] {
			run.Round += before
			r.AddRun(run)
		}
		if then != nil {
			then()
		}
		return r.Save()
	}
	return e.Run(ctx)
}

// Chosen reports whether one of these arms is measured.
func (r *Promises) Chosen(arms ...string) bool {
	return len(r.Arms) == 0 || slices.ContainsFunc(arms, func(name string) bool { return slices.Contains(r.Arms, name) })
}

// Given says what figures a run gave.
func (r Run) Given() (text string) {
	for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
		text += fmt.Sprintf(" %s %.4g", name, r.Figures[name])
	}
	return text
}

// AtMost prints a figure with its promise: an upper limit.
func (r *Promises) AtMost(name string, v stats.Interval, limit float64) {
	r.promise(name, Promise{Interval: v, AtMost: &limit}, limit, 1)
}

// AtLeast prints a figure with its promise: a lower limit.
func (r *Promises) AtLeast(name string, v stats.Interval, limit float64) {
	r.promise(name, Promise{Interval: v, AtLeast: &limit}, limit, -1)
}

func (r *Promises) promise(name string, p Promise, limit, sign float64) {
	if r.Unjudged {
		return
	}
	r.Record.Promised[name] = p
	text, missed := verdict(p.Interval, limit, sign)
	fmt.Printf("%-52s %s, %s\n", name, p.Interval, text)
	if missed {
		r.Missed = append(r.Missed, name)
	}
}

// verdict compares a figure's estimate with its promise. It also says if the interval reaches
// beyond it. sign is 1 if more is worse.
func verdict(v stats.Interval, limit, sign float64) (text string, missed bool) {
	beyond, worst := "above", v.High
	if sign < 0 {
		beyond, worst = "below", v.Low
	}
	missed = sign*v.Value > sign*limit
	switch {
	case missed:
		text = fmt.Sprintf("%s the promised %.3g", strings.ToUpper(beyond), limit)
	case sign*worst > sign*limit:
		text = fmt.Sprintf("within the promised %.3g (interval reaches %s)", limit, beyond)
	default:
		text = fmt.Sprintf("within the promised %.3g", limit)
	}
	return text, missed
}

// Mean prints the mean of a sample, with an upper limit as its promise.
func (r *Promises) Mean(name, sample string, limit float64) error {
	if r.Unjudged {
		return nil
	}
	m, err := stats.Mean(r.Samples(sample), Confidence)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.AtMost(name, m, limit)
	return nil
}

// Ratio prints the ratio of two samples taken in turn, with an upper limit as its promise.
func (r *Promises) Ratio(name, ours, theirs string, limit float64) error {
	if r.Unjudged {
		return nil
	}
	v, err := r.compare(name, ours, theirs)
	if err == nil {
		r.AtMost(name, v, limit)
	}
	return err
}

// Beside prints a ratio without a promise.
func (r *Promises) Beside(name, one, other string) error {
	if r.Unjudged {
		return nil
	}
	v, err := r.compare(name, one, other)
	if err != nil {
		return err
	}
	r.Record.Promised[strings.TrimSpace(name)] = Promise{Interval: v}
	fmt.Printf("%-52s %s\n", name, v)
	return nil
}

func (r *Promises) compare(name, one, other string) (stats.Interval, error) {
	v, err := stats.Ratio(r.Samples(one), r.Samples(other), Confidence)
	if err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}
