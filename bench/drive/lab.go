package drive

import (
	"context"
	"errors"

	"pagurus/fleet"
)

// Lab is what an experiment needs to be in.
type Lab struct {
	Flags   []string // of `pagurus lab up`
	Instead func()   // called when there is no cluster that does as well; nil: only a lab of its own does
}

// In does something in a lab, with what its controller knows as that begins. It brings the lab
// up, and takes it down whatever came of that, unless there is a cluster that does as well: lab
// says if that is a lab, too.
func (p Pagurus) In(ctx context.Context, l Lab, do func(s fleet.Snapshot, lab bool) error) (err error) {
	if l.Instead != nil {
		if s, err := p.Snapshot(ctx); err == nil {
			_, none := p.Type(ctx, "lab", "status")
			return do(s, none == nil)
		}
		l.Instead()
	}
	if _, err := p.Type(ctx, append([]string{"lab", "up"}, l.Flags...)...); err != nil {
		return err
	}
	defer func() {
		_, e := p.Type(context.WithoutCancel(ctx), "lab", "down")
		err = errors.Join(err, e)
	}()
	s, err := p.Snapshot(ctx)
	if err != nil {
		return err
	}
	return do(s, true)
}
