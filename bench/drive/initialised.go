package drive

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed programs/initialised.c
var initialised []byte

// Compile writes a program's source to a file in Dir and compiles it there with
// the compiler of an image, to be run as ./NAME.
func (p Pagurus) Compile(ctx context.Context, image, name string, source []byte, compiler ...string) error {
	if err := os.WriteFile(filepath.Join(p.Dir, name+".c"), source, 0o644); err != nil {
		return err
	}
	_, err := p.Type(ctx, append(append([]string{"image", "shell", image, "--"}, compiler...), "-o", name, name+".c")...)
	return err
}

// Initialised compiles into Dir the program that ToInit runs.
func (p Pagurus) Initialised(ctx context.Context) error {
	return p.Compile(ctx, "openmpi", "initialised", initialised, "mpicc")
}

// ToInit measures the time from the command until MPI_Init has returned on both ranks of a job
// of two guests of a kind.
func (p Pagurus) ToInit(ctx context.Context, kind string) (time.Duration, error) {
	begun := time.Now()
	out, err := p.Type(ctx, "run", "--kind", kind, "-n", "2", "--guests", "2", "--image", "openmpi", "--", "./initialised")
	if err != nil {
		return 0, err
	}
	last, err := lastInitialised(out)
	return last.Sub(begun), err
}

// lastInitialised returns when MPI_Init returned on the last of two ranks, by the rank's own
// clock, which is set from this machine's.
func lastInitialised(said string) (last time.Time, err error) {
	ranks := 0
	for line := range strings.Lines(said) {
		at, ok := strings.CutPrefix(strings.TrimSpace(line), "initialised ")
		if !ok {
			continue
		}
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return last, err
		}
		if t := time.Unix(0, ns); t.After(last) {
			last = t
		}
		ranks++
	}
	if ranks != 2 {
		return last, fmt.Errorf("not both ranks spoke: %q", said)
	}
	return last, nil
}
