package endnotice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"pagurus/fleet"
)

const (
	slurmEvery = time.Minute
	slurmLimit = 10 * time.Second
	slurmEmpty = time.Second
	// slurmAhead is how long before the end of its job a host is emptied.
	slurmAhead = 10 * time.Minute
	// slurmWait is Slurm's own KillWait: the time between SIGTERM and SIGKILL, where Slurm does not say another one.
	slurmWait = 30 * time.Second
)

// slurm is the Slurm job in which the agent runs. Slurm says when it ends (scontrol), also once it is preempted, and sends SIGTERM as it begins to
// preempt it; SIGUSR1 is for sites that send a signal of their own before (sbatch --signal).
type slurm struct {
	job     string
	signals <-chan os.Signal
	over    func()
	told    fleet.EndNotice
}

func (s *slurm) Name() string { return "Slurm" }

func (s *slurm) Watch(ctx context.Context, tell Tell, empty func() bool) {
	if s.job == "" {
		tell(nil, errors.New("the agent does not run in a job of Slurm: SLURM_JOB_ID is not set"))
		return
	}
	emptied := time.NewTicker(slurmEmpty)
	defer emptied.Stop()
	var looked, signalled time.Time
	ending := false // Slurm has told the agent to end
	for {
		if time.Since(looked) >= slurmEvery {
			end, err := s.ends(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil && signalled.IsZero() {
				tell(nil, err)
			} else {
				tell(s.judge(end, signalled, time.Now()), nil)
			}
			looked = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-emptied.C:
			if ending && time.Since(signalled) >= slurmEmpty && empty() && s.over != nil {
				s.over()
			}
		case got := <-s.signals:
			ending = ending || got == syscall.SIGTERM
			signalled, looked = time.Now(), time.Time{}
		}
	}
}

// judge says whether the job ends soon.
func (s *slurm) judge(end, signalled, now time.Time) []fleet.EndNotice {
	says, guess := "the time of its Slurm job is over", false
	if !signalled.IsZero() {
		says = "Slurm ends its job"
		if end.IsZero() || end.Sub(signalled) > slurmAhead { // Slurm has not set the end: KillWait counts
			end, guess = signalled.Add(slurmWait), true
		}
	}
	if end.IsZero() || end.Sub(now) > slurmAhead {
		s.told = fleet.EndNotice{}
		return nil
	}
	if id := fmt.Sprint(says, " ", end.Unix()); s.told.ID != id {
		s.told = fleet.EndNotice{Kind: fleet.SlurmNotice, ID: id, Says: says, At: end, Since: now, Guess: guess}
	}
	return []fleet.EndNotice{s.told}
}

// ends asks Slurm when the job ends; zero: it does not.
func (s *slurm) ends(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, slurmLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "scontrol", "show", "job", "--oneliner", s.job)
	cmd.Env = append(os.Environ(), "SLURM_TIME_FORMAT=%s") // seconds, in no time zone
	out, err := cmd.Output()
	if err != nil {
		return time.Time{}, fmt.Errorf("asking Slurm when job %s ends: %w", s.job, err)
	}
	return slurmEnd(string(out), time.Local)
}

// slurmEnd reads what scontrol says of a job.
func slurmEnd(said string, zone *time.Location) (time.Time, error) {
	for _, word := range strings.Fields(said) {
		value, is := strings.CutPrefix(word, "EndTime=")
		if !is {
			continue
		}
		if value == "Unknown" || value == "None" || value == "N/A" {
			return time.Time{}, nil
		}
		if at, err := time.ParseInLocation("2006-01-02T15:04:05", value, zone); err == nil {
			return at, nil
		}
		var seconds int64
		if n, err := fmt.Sscan(value, &seconds); n == 1 && err == nil && seconds > 0 {
			return time.Unix(seconds, 0), nil
		}
		return time.Time{}, fmt.Errorf("by Slurm the job ends at %q, which is no time", value)
	}
	return time.Time{}, errors.New("no end of the job is said by Slurm")
}
