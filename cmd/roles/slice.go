package roles

import (
	"errors"
	"time"

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
