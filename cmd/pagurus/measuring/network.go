package measuring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/act/badlink"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/programs"
	"pagurus/bench/stats"
	"pagurus/bench/targets"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// network is what is asked for.
type network struct {
	overhead
	impairment badlink.Impairment
}

func networkCommand(std Streams) *cobra.Command {
	o := network{overhead: overhead{asked: usual(std), memory: 768 << 20, image: hpcImage, suite: "netpipe"}}
	cmd := &cobra.Command{
		Use:   "network",
		Short: short("network"),
		Long: `Network measures messages of 1 byte to 1 MiB between two ranks in guests of different
hosts (NetPIPE over MPI), on each target in turn. It draws latency and bandwidth by
their size. Targets are those of 'bench overhead'; native are two processes in the
networks of two containers of a lab.

With --loss or --delay each target is measured a second time, while the lab's links
lose or delay traffic. The record then has how often TCP of the two guests sent again
and waited for its time-out. A loss drops what a host's kernel sends at once: up to
64 KiB of a stream. Delays need a kernel with netem.

It needs a cluster; without one it brings up a lab of two hosts and takes it down
again. Ctrl-C ends it and keeps what was measured.`,
		Example: `  sudo pagurus bench network
  sudo pagurus bench network --loss 1% --runs 10 --report bench/lossy
  pagurus bench network --targets container,vm`,
		Args: cli.NoArguments,
		RunE: measured(o.run),
	}
	o.flags(cmd, "runs on each target")
	o.guestFlags(cmd)
	f := cmd.Flags()
	cli.Share(f, &o.impairment.Loss, "loss", "measure also with links that lose this share of what hosts send; in a lab only")
	cli.Duration(f, &o.impairment.Delay, "delay", "measure also with links that delay everything by this time; in a lab only")
	return cmd
}

// mostLate is the longest delay with which a run comes to its end in time.
const mostLate = 500 * time.Millisecond

func (o *network) choose() error {
	if err := o.impairment.Check(); err != nil {
		return err
	}
	if o.impairment.Delay > mostLate {
		return fmt.Errorf("--delay may be at most %s: a run would take too long", mostLate)
	}
	return o.check()
}

// troubled reports whether links are made worse.
func (o *network) troubled() bool { return o.impairment != badlink.Impairment{} }

// suffix tells a target with worse links from that without.
func (o *network) suffix() (s string) {
	if o.impairment.Loss > 0 {
		s += "-lossy"
	}
	if o.impairment.Delay > 0 {
		s += "-delayed"
	}
	return s
}

func (o *network) run(ctx context.Context, cmd *cobra.Command) error {
	if err := o.choose(); err != nil {
		return fmt.Errorf("%w; see `pagurus bench network --help`", err)
	}
	return o.within(ctx, "send", func() error {
		l := &links{pagurus: o.where, suffix: o.suffix(), impairment: o.impairment}
		if o.troubled() {
			if !o.lab {
				return errors.New("--loss and --delay are for a lab, whose links are on this machine: leave them out, or measure without a cluster")
			}
			if err := errors.Join(l.set(ctx, o.impairment), l.set(ctx, badlink.Impairment{})); err != nil {
				return err
			}
		}
		if err := o.seeTo(ctx); err != nil {
			return err
		}
		lab := o.place()
		lab.Counts = o.lab
		l.inside = lab
		o.guests, o.sum = o.settings(), tcpNotes
		if o.troubled() {
			o.worsen()
		}
		return o.measure(ctx, cmd, &bench.Experiment{Place: l, Apart: o.apart(), Spec: bench.Spec{Name: "network", Ranks: targets.Ranks, Programs: []bench.Program{o.program()}}})
	})
}

// worsen adds to each target the same with worse links, which is compared with it.
func (o *network) worsen() {
	for _, t := range slices.Clone(o.targets) {
		s := o.guests[t]
		s.Beside, s.Link = t, o.impairment.String()
		o.targets = append(o.targets, t+o.suffix())
		o.guests[t+o.suffix()] = s
	}
}

// What a run is made of: NetPIPE tries each of some sizes some times, and each try
// sends a number of messages there and back. They are fewer where links are worse.
const (
	tries     = 44 * 7
	few       = 100
	mostLater = time.Minute // what delays may add to a run
)

// program is NetPIPE, with what TCP did beside, and the time that all took: NetPIPE
// gives the best of its tries of each size, in which losses hide.
func (o *network) program() bench.Program {
	size := o.size()
	if o.troubled() {
		size.Messages = min(size.Messages, few)
	}
	if d := o.impairment.Delay; d > 0 {
		size.Messages = max(1, min(size.Messages, int(mostLater/(2*tries*d))))
	}
	p := programs.NetPIPE(size)
	p.Command = fmt.Sprintf("sh -c 'begun=$(date +%%s%%N); %s || exit; [ %s != 0 ] || echo %s $(($(date +%%s%%N)-begun)) >>%s'", p.Command, targets.RankVariables, tookMark, p.Output)
	p.Figures = append(p.Figures, bench.Figure{Name: "took_s", Says: "NetPIPE time in all", Unit: "s", Sense: stats.Slower})
	p.Read = readNetwork
	return p
}

// tookMark precedes the time that NetPIPE took, in nanoseconds.
const tookMark = "took-ns"

// readNetwork reads what NetPIPE wrote, and what TCP did meanwhile.
func readNetwork(text string) (bench.Result, error) {
	got, err := programs.ReadNetPIPE(text)
	if err != nil {
		return got, err
	}
	took, err := programs.Named(text, tookMark)
	got.Figures["took_s"] = took / 1e9
	for name, n := range targets.Counted(text) {
		got.Figures[name] = n
	}
	return got, err
}

// tcpNotes say of each target what TCP had to send again, and how often it waited for
// its time-out.
func tcpNotes(r *bench.Record) (notes []string) {
	for _, t := range r.Spec.Targets {
		runs, did := 0, map[string]float64{}
		for _, run := range r.Runs {
			if _, ok := run.Figures[targets.Resent]; !ok || run.Target != t {
				continue
			}
			runs++
			for _, name := range []string{targets.Resent, targets.Timeouts, targets.Probes} {
				did[name] += run.Figures[name]
			}
		}
		switch {
		case runs == 0:
		case did[targets.Resent] == 0:
			notes = append(notes, fmt.Sprintf("%s: TCP of the two guests sent nothing again in %s", t, view.Count(runs, "run")))
		default:
			notes = append(notes, fmt.Sprintf("%s: TCP of the two guests sent %.0f segments again in %s; it waited for %.0f retransmission time-outs, and %.0f of a last segment (loss probes)",
				t, did[targets.Resent], view.Count(runs, "run"), did[targets.Timeouts], did[targets.Probes]))
		}
	}
	return notes
}

// links is a place whose links between hosts are made worse for some targets, as
// long as they run and no longer: what starts jobs goes over the same ones.
type links struct {
	inside     bench.Place
	pagurus    drive.Pagurus
	suffix     string // of such targets; empty: there are none
	impairment badlink.Impairment
}

// set makes the links of the two hosts so.
func (l *links) set(ctx context.Context, t badlink.Impairment) error {
	_, err := l.pagurus.Type(ctx, "lab", "link", "host1", "host2", "--loss", fmt.Sprintf("%g%%", 100*t.Loss), "--delay", t.Delay.String())
	return err
}

// linked is a program that is run on targets with their links as they are, and with worse
// links. Targets of one sort are ready at a time.
type linked struct {
	*links
	program bench.Program
	targets []string
	ready   bench.Round
	worse   bool // what is ready
}

// Open makes nothing ready yet: a job of its own is for each sort of links, since one
// that waits runs the program only once.
func (l *links) Open(ctx context.Context, p bench.Program, targets []string) (bench.Round, error) {
	if l.suffix == "" {
		return l.inside.Open(ctx, p, targets)
	}
	return &linked{links: l, program: p, targets: targets}, nil
}

// split gives the target itself and whether its links are worse.
func (l *links) split(target string) (string, bool) {
	return strings.CutSuffix(target, l.suffix)
}

// Run runs the program once, with the links as the target has them.
func (l *linked) Run(ctx context.Context, target string) (text string, err error) {
	target, worse := l.split(target)
	if l.ready != nil && l.worse != worse {
		if err := l.Close(); err != nil {
			return "", err
		}
	}
	if l.ready == nil {
		if l.ready, err = l.inside.Open(ctx, l.program, l.alike(worse)); err != nil {
			l.ready = nil
			return "", err
		}
		l.worse = worse
	}
	if worse {
		defer func() { err = errors.Join(err, l.set(context.WithoutCancel(ctx), badlink.Impairment{})) }()
		if err := l.set(ctx, l.impairment); err != nil {
			return "", err
		}
	}
	return l.ready.Run(ctx, target)
}

// alike are the targets that have such links, by what they are without.
func (l *linked) alike(worse bool) (all []string) {
	for _, t := range l.targets {
		if t, w := l.split(t); w == worse {
			all = append(all, t)
		}
	}
	return all
}

// Close ends what is ready.
func (l *linked) Close() error {
	if l.ready == nil {
		return nil
	}
	r := l.ready
	l.ready = nil
	return r.Close()
}
