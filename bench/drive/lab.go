package drive

import (
	"context"
	"errors"
)

// InLab brings a lab up with these flags, does something in it, and takes the lab down,
// whatever came of that.
func (p Pagurus) InLab(ctx context.Context, flags []string, do func() error) (err error) {
	if _, err := p.Type(ctx, append([]string{"lab", "up"}, flags...)...); err != nil {
		return err
	}
	defer func() {
		_, e := p.Type(context.WithoutCancel(ctx), "lab", "down")
		err = errors.Join(err, e)
	}()
	return do()
}
