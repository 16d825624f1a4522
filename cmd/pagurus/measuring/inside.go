package measuring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/noise"
	"pagurus/bench/targets"
	"pagurus/fleet"
)

// What noise is measured in: any image does, since the probe is linked to nothing.
const (
	probeShim   = "pagurus-shim" // the program that has the probe
	probeImage  = "openmpi"
	probeMemory = 512 << 20
)

// guestTargets are the targets that are guests.
func guestTargets() []string {
	return slices.DeleteFunc(targetNames(), func(t string) bool { return t == targets.Native })
}

// inside has cores of a guest probed: by a job of one rank in it, which does what it is
// told on its standard input.
func (o *noisy) inside(ctx context.Context, measure func() error) error {
	with := overhead{asked: o.asked, image: probeImage, memory: probeMemory}
	with.targets = []string{o.in}
	return with.within(ctx, "", func() (err error) {
		talk, err := o.start(ctx, &with)
		if err != nil {
			return err
		}
		defer func() {
			if e := talk.End(); ctx.Err() == nil { // else it was told to end
				err = errors.Join(err, e)
			}
		}()
		far, err := noise.Reached(talk, talk)
		if err == nil {
			err = o.choose(far.CPUs, func(cpu int) error {
				if !slices.Contains(far.CPUs, cpu) {
					return fmt.Errorf("the guest has no CPU %d that it may use, but %s", cpu, fleet.CPUSet(far.CPUs))
				}
				return nil
			})
		}
		if err != nil {
			return err
		}
		o.probe = func(_ context.Context, cpu int) (noise.Core, error) { return far.Probe(cpu, o.turn()) }
		o.describe(with.settings()[o.in])
		return measure()
	})
}

// start brings the probe to the job's folder, and runs it.
func (o *noisy) start(ctx context.Context, with *overhead) (*drive.Dialogue, error) {
	if err := with.seeTo(ctx); err != nil {
		return nil, err
	}
	program, err := o.Beside(probeShim)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(with.where.Dir, probeShim), text, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("bring %s to the guest: %w", probeShim, err)
	}
	o.say("starting a guest to probe")
	args := append([]string{"run", "-n", "1", "--guests", "1", "--cpus", strconv.Itoa(o.cpus), "--mem", fmt.Sprint(with.memory), "--image", with.image, "--no-trace"}, kinds[o.in]...)
	return with.where.Dialogue(ctx, append(args, "--", "./"+probeShim, noise.ProbeVerb)...)
}

// describe has the record say whose cores they are.
func (o *noisy) describe(s bench.Setting) {
	s.Guests, s.CPUs = 1, o.cpus
	o.guests = map[string]bench.Setting{}
	for _, t := range o.targets {
		o.guests[t] = s
	}
	note := "the cores are those of a guest (" + o.in + "), as it sees them"
	if s.Accelerator == "tcg" {
		note += "; it is emulated, and what the emulator does to it counts as noise"
	}
	o.notes = append(o.notes, note)
}
