// Command pagurus-chaos injects faults into a lab on this machine while guests move in it.
// With --kind hosts it cuts the power of whole hosts, and kills, suspends and rolls back three
// controllers with their store, while jobs go on from checkpoints: see whole. Otherwise it
// kills agents, the controller, QEMU, containers and CRIU. It cuts, slows and degrades links, exhausts memory and disks, takes CRIU away, cancels moves and repeats requests,
// each in a phase that a plan chooses. Meanwhile it checks from outside, by the processes
// and the jobs' results, whether a guest was lost or ran twice. `make chaos` runs it. The
// same seed gives the same plan. It exits with 1 when it has found something.
//
// It must not know any internals: it sees only what the controller tells every client and
// what the kernel shows. What all runs injected and found is kept: see record. Plan and
// verdicts are tested without a lab; the rest by a short run in the system ring.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"pagurus/bench/drive"
	"pagurus/fleet"
	faultpoint "pagurus/internal/fault"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/demo"
)

// hostsKind is a run in which hosts and controllers fail; see whole.
const hostsKind = "hosts"

const (
	exitWrong       = 1
	exitInterrupted = 130
)

func main() {
	c := &chaos{news: make(chan struct{}), checker: newChecker()}
	var of, only string
	var to outputs
	flag.StringVar(&of, "kind", string(fleet.VM), "kind of the guests: vm or container; or hosts: containers, while hosts, controllers and the links between them fail")
	flag.IntVar(&c.faults, "faults", 1000, "how many faults")
	flag.Uint64Var(&c.seed, "seed", uint64(time.Now().UnixNano()), "the same seed gives the same plan of faults (default: from the clock)")
	flag.StringVar(&to.report, "report", "dist/chaos.json", "where the report goes: every fault, and what became of the move")
	flag.StringVar(&to.logs, "logs", "dist/chaos-logs", "where the lab's logs go when something was found")
	flag.StringVar(&to.record, "record", "", "the `file` of all runs to which this one is added; its table is printed beside it (default: none)")
	add := flag.String("add", "", "run nothing, but add the run of this `report` to the record")
	c.limit = 2 * time.Hour
	flag.Var(cli.Span(&c.limit), "duration", "no more faults after this `time`")
	flag.StringVar(&only, "only", "", "only faults of these kinds, joined by commas: "+list(kinds(fleet.VM))+"; of containers "+list(kinds(fleet.Container))+"; of hosts "+list(wholeKinds()))
	flag.IntVar(&c.hosts, "hosts", 3, "hosts of the lab")
	flag.StringVar(&c.other, "other", "", "with --kind hosts: the `folder` of programs of a version of the protocol that is one apart (default: "+otherFolder+" beside this program, if it is there; none: all are of one)")
	flag.IntVar(&c.seconds, "seconds", 30, "how long each job computes")
	flag.StringVar(&c.memory, "mem", "192M", "memory of each guest")
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { c.bounded = c.bounded || f.Name == "duration" })
	err := c.start(of, only)
	switch {
	case err == nil && *add != "":
		err = addReport(*add, to.record)
	case err == nil:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = c.all(ctx, to)
		stop()
	}
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "pagurus-chaos: cancelled")
		os.Exit(exitInterrupted)
	default:
		fmt.Fprintln(os.Stderr, "pagurus-chaos:", err)
		os.Exit(exitWrong)
	}
}

// outputs are the files and folders that a run writes.
type outputs struct{ report, record, logs string }

func list(all []kind) string {
	var names []string
	for _, k := range all {
		names = append(names, string(k))
	}
	return strings.Join(names, ",")
}

// start checks the options.
func (c *chaos) start(of, only string) error {
	c.kind = fleet.Kind(of)
	all := kinds(c.kind)
	switch of {
	case string(fleet.VM):
		c.mechanism = vmMechanism
	case string(fleet.Container):
		c.mechanism = containerMechanism
	case hostsKind:
		c.mechanism, c.kind, c.whole, all = containerMechanism, fleet.Container, newWhole(c.seconds), wholeKinds()
		c.checker.whole = c.whole
	default:
		return fmt.Errorf("there is no kind of run %q; there are %s, %s and %s", of, fleet.VM, fleet.Container, hostsKind)
	}
	if _, err := cli.ParseBytes(c.memory); err != nil {
		return fmt.Errorf("--mem: %w", err)
	}
	c.of, c.checker.twice.ran = of, c.ran
	for name := range strings.FieldsFuncSeq(only, func(r rune) bool { return r == ',' }) {
		if !slices.Contains(all, kind(name)) {
			return fmt.Errorf("there is no kind of fault %q; there are %s", name, list(all))
		}
		c.only = append(c.only, kind(name))
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; pagurus-chaos -help names the flags", flag.Arg(0))
	}
	if err := c.findOther(); err != nil {
		return err
	}
	if c.hosts < 2 {
		return fmt.Errorf("guests cannot move among %d hosts; give --hosts 2 or more", c.hosts)
	}
	if c.faults < 1 || c.seconds < 1 {
		return errors.New("--faults and --seconds must be 1 or more")
	}
	return nil
}

// all is the whole run with its lab, which is removed in any case.
func (c *chaos) all(ctx context.Context, to outputs) (err error) {
	if c.Program, err = drive.Beside(); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, c.Program); err != nil {
		return err
	}
	if c.Dir, err = os.MkdirTemp("/var/tmp", "pagurus-chaos-"); err != nil {
		return err
	}
	defer os.RemoveAll(c.Dir)
	fmt.Printf("seed %d: %d faults\n", c.seed, c.faults)
	if c.whole != nil && c.other == "" {
		fmt.Printf("versions are not mixed: there is no folder %s beside this program; scripts/chaos builds it\n", otherFolder)
	}
	if err := c.Witness(ctx); err != nil {
		return err
	}
	if err := demo.NoLab(ctx, c.Program); err != nil {
		return err // a lab came up while the image was built
	}
	before := traces()
	defer func() {
		_, e := c.Type(context.WithoutCancel(ctx), "lab", "down")
		err = errors.Join(err, e, nothingLeft(before))
	}()
	if err := c.lab(ctx); err != nil {
		return err
	}
	c.began = time.Now()
	err = c.run(ctx)
	if found := (wrongness{}); errors.As(err, &found) {
		c.accuse(found, to.logs)
		err = fmt.Errorf("seed %d, fault %d: %w", c.seed, c.injected(), err)
	}
	c.summary(os.Stdout)
	if err == nil {
		err = c.tooFew()
	}
	return errors.Join(err, c.keepReport(to.report, to.record, err))
}

// lab starts the lab, with its store on a disk that can be filled, and for containers the
// agents' important folders, too.
func (c *chaos) lab(ctx context.Context) error {
	if c.whole != nil {
		return c.wholeLab(ctx)
	}
	if err := store.mount(); err != nil {
		return err
	}
	if c.kind == fleet.Container {
		for n := range c.hosts {
			for _, d := range places(fleet.HostID(fmt.Sprintf("host%d", n+1))) {
				if err := d.mount(); err != nil {
					return err
				}
			}
		}
	}
	return c.raise(ctx)
}

// raise starts the lab, whose daemons wait at fault points, and connects to it.
func (c *chaos) raise(ctx context.Context, flags ...string) error {
	if err := os.Setenv(faultpoint.Environment, strings.Trim(c.naps(0)+","+c.clocks(), ",")); err != nil {
		return err
	}
	_, err := c.Type(ctx, append([]string{"lab", "up", "--hosts", fmt.Sprint(c.hosts)}, flags...)...)
	if e := os.Unsetenv(faultpoint.Environment); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	where, err := wire.Resolve(wire.Config{}, wire.UserCredentials())
	if err == nil {
		c.client, err = wire.Dial(where)
	}
	return err
}

// sorted gives jobs in order of ID.
func sorted(jobs map[fleet.JobID]fleet.Job) []fleet.Job {
	var out []fleet.Job
	for _, j := range jobs {
		out = append(out, j)
	}
	slices.SortFunc(out, func(a, b fleet.Job) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}
