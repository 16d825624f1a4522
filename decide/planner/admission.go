// This file refuses jobs that can never run, whatever the cluster's state, before any
// guest is booted.
//
// What is wrong with a job by itself is fleet's, since the command line says it too. This
// file must not know hosts or their free room. The planner's tests cover it: they submit
// accepted and refused jobs.

package planner

import (
	"fmt"

	"pagurus/fleet"
)

// completeJob fills in a job's defaults.
func completeJob(s fleet.JobSpec) fleet.JobSpec {
	if s.Kind == "" {
		s.Kind = fleet.Usual
	}
	if s.Export == "" {
		s.Export = s.Dir
	}
	if s.Need.CPUs == 0 && s.Guests > 0 {
		s.Need.CPUs = (s.Ranks + s.Guests - 1) / s.Guests
	}
	return s
}

// invalidJob says what is wrong with a job and how to fix it; empty: nothing. It does not
// check that named hosts exist.
func invalidJob(s fleet.JobSpec, image *fleet.Image) string {
	if reason := s.Refused(); reason != "" {
		return reason
	}
	if image == nil || image.Digest == "" {
		return fmt.Sprintf("there is no image %s; `pagurus image ls` lists them, `pagurus image build %s` makes it", quoted(s.Image), s.Image)
	}
	return ""
}

func quoted(name string) string {
	if name == "" {
		return `""`
	}
	return name
}
