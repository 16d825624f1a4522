package container

import (
	"errors"

	"pagurus/act/container/thaw"
)

// guardCut starts the process that lets a guest run on if this one dies while the guest is suspended.
func (d *Driver) guardCut(g *guest, s *saving) error {
	freezer, err := d.config.Cgroups.Freezer(g.ID)
	if err != nil {
		return err
	}
	r := g.Remembered()
	return d.atHost(func() (err error) {
		s.guard, err = thaw.Watch(thaw.Cut{PID: r.Process.PID, Freezer: freezer, Port: r.Port, Criu: d.criu, Limit: guardHold})
		return err
	})
}

// prepareQueue makes what will hold the frames for a guest. Several links are made for that, while
// the guest runs.
func (d *Driver) prepareQueue(g *guest, s *saving) error {
	if s.queue != nil {
		return nil
	}
	return d.atHost(func() (err error) {
		s.queue, err = g.Remembered().Port.PrepareQueue()
		return err
	})
}

// holdFrames holds the frames for a guest, which from then on is only recorded in memory, or undoes
// that.
func (d *Driver) holdFrames(g *guest, s *saving, on bool) (err error) {
	if on {
		if err := s.tape.HoldInMemory(); err != nil {
			return err
		}
		if err := d.prepareQueue(g, s); err != nil { // again: the guest ran on for a moment
			return err
		}
		return d.atHost(s.queue.HoldFrames)
	}
	if s.queue != nil {
		err = d.atHost(s.queue.Release)
		s.queue.Close()
		s.queue = nil
	}
	return errors.Join(err, s.tape.Pour())
}
