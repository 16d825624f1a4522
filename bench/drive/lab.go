package drive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// named is the controller that somebody has named, by the environment or by a login; empty:
// there is none.
func named() string {
	at, err := wire.Resolve(wire.Config{}, wire.UserCredentials())
	if err != nil {
		return cmp.Or(at.Address, at.Credentials)
	}
	if at.Address == "unix:"+wire.DefaultSocket && os.Getenv(wire.ControllerVariable) == "" {
		return ""
	}
	return at.Address
}

// Lab is what an experiment needs to be in.
type Lab struct {
	Flags   []string // of `pagurus lab up`
	Instead func()   // called when there is no cluster that does as well; nil: only a lab of its own does
}

// In does something in a lab, with what its controller knows as that begins. It brings the lab
// up, and takes it down whatever came of that, unless there is a cluster that does as well: lab
// says if that is a lab, too. A cluster that somebody has named and that does not answer is an
// error: a lab would measure something else.
func (p Pagurus) In(ctx context.Context, l Lab, do func(s fleet.Snapshot, lab bool) error) (err error) {
	if l.Instead != nil {
		s, err := p.Snapshot(ctx)
		if err == nil {
			_, none := p.Type(ctx, "lab", "status")
			return do(s, none == nil)
		}
		if at := named(); at != "" {
			return fmt.Errorf("the controller %s does not answer (%w): name one that does, with --controller, or none for a lab of this machine", at, err)
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
