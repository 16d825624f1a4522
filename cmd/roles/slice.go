package roles

import (
	"errors"
	"fmt"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/show/cli"
)

// Slice is the time slice that guests get. The zero value is the scheduler's own.
type Slice struct {
	Length   time.Duration
	Adaptive bool // it follows from what each guest does
}

const adaptive = "adaptive"

// String is how people write it.
func (s *Slice) String() string {
	switch {
	case s.Adaptive:
		return adaptive
	case s.Length == 0:
		return "0" // which help does not show
	}
	return fleet.ShortDuration(s.Length)
}

// Type is not "duration", whose values are judged as lengths of time alone.
func (s *Slice) Type() string { return "slice" }

// Set reads a flag. After an error the slice is as it was.
func (s *Slice) Set(text string) error {
	if text == adaptive {
		*s = Slice{Adaptive: true}
		return nil
	}
	d, err := cli.ParseDuration(text)
	if err != nil {
		return errors.New(err.Error() + ", or adaptive")
	}
	*s = Slice{Length: d}
	return nil
}

// OnXen reports whether the guests of this host are domains of Xen, whose scheduler gives them their time slices.
func (f *Agent) OnXen() bool { return host.IsXen() && !f.Small }

// refused says why a slice has no effect here, by what missing says of this kernel. On a Xen host Xen sets it, of any kernel in the first domain:
// the driver says there whether its scheduler has slices.
func (s Slice) refused(onXen bool, missing func() string) error {
	if s == (Slice{}) || onXen {
		return nil
	}
	if why := missing(); why != "" {
		return fmt.Errorf("--slice has no effect here: %s", why)
	}
	return nil
}
