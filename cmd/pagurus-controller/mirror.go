package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"pagurus/act/image"
	"pagurus/decide/quota"
	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/controller"
)

// mirrorEvery is how often a controller looks for images that others have.
const mirrorEvery = 10 * time.Second

// justBuilt is the age up to which the controller that leads fetches an image that was built beside another.
const justBuilt = 10 * time.Minute

// mirror keeps every image of the other controllers here as well. Of two images with one name the one that was built later has it.
//
// One that was removed here is not fetched again by the controller that leads; the others have it until it is
// removed there.
type mirror struct {
	images  *image.Store
	limits  fleet.ImageLimits
	others  func() []controller.Other
	leading func() bool
	load    func(context.Context) (fleet.Snapshot, error) // the cluster's state
	reserve int64                                         // bytes that images leave free on their disk: the store may be on the same
	said    map[string]string                             // what the log says already of an image
	log     *slog.Logger
}

// run looks for images again and again, until ctx ends.
func (m *mirror) run(ctx context.Context) {
	for pause.For(ctx, mirrorEvery) == nil {
		m.turn(ctx)
	}
}

// turn fetches what others have and this one does not.
func (m *mirror) turn(ctx context.Context) {
	for _, o := range m.others() {
		there, err := o.Client.ImagesThere(ctx)
		if err != nil {
			continue // asked again
		}
		for _, img := range there {
			if m.leading() && time.Since(img.Built) > justBuilt {
				continue
			}
			said := ""
			if err := m.takeImage(ctx, o, img); err != nil && ctx.Err() == nil {
				said = err.Error()
			}
			if at := img.Name + " " + o.Name; said != m.said[at] {
				m.said[at] = said
				if said != "" {
					m.log.Warn("an image of another controller is not here; it is tried again", "image", img.Name, "controller", o.Name, "cause", said)
				}
			}
		}
	}
}

// takeImage makes an image of another controller present, and gives it its name.
func (m *mirror) takeImage(ctx context.Context, from controller.Other, img fleet.Image) error {
	if had, err := m.images.Find(img.Name); err == nil && (had.Digest == img.Digest || !had.Built.Before(img.Built)) {
		return nil
	}
	there, err := m.images.List()
	if err != nil {
		return err
	}
	if reason := quota.RefusedCopy(m.limits, there, img); reason != "" {
		return errors.New(reason)
	}
	if err := m.fetch(ctx, from, img); err != nil {
		return err
	}
	replaced, err := m.images.Supersede(img)
	if err != nil {
		return err
	}
	m.log.Info("took over an image", "image", img.Name, "digest", img.Digest, "controller", from.Name)
	if !replaced {
		return nil
	}
	return m.prune(ctx)
}

// fetch makes an image's files present, if there is room.
func (m *mirror) fetch(ctx context.Context, from controller.Other, img fleet.Image) error {
	if m.images.Has(img.Digest) {
		return nil
	}
	free, err := m.images.FreeBytes()
	if err != nil {
		return err
	}
	if lacks := img.Bytes + m.reserve - free; lacks > 0 {
		return fmt.Errorf("the disk has no room for its %d MiB beside the %d MiB that the store needs: make room there", img.Bytes>>20, m.reserve>>20) // the same words each time
	}
	_, err = m.images.FetchingWith(func(ctx context.Context, d fleet.Digest, file string, w io.Writer) error {
		return from.Client.FetchImageBetween(ctx, d, file, w)
	}).Ensure(ctx, img.Digest)
	return err
}

// prune deletes images that later ones have replaced and that no job needs.
func (m *mirror) prune(ctx context.Context) error {
	s, err := m.load(ctx)
	if err != nil {
		return err
	}
	needed := map[fleet.Digest]bool{}
	for _, j := range s.Jobs {
		needed[j.Digest] = needed[j.Digest] || j.State != fleet.JobEnded
	}
	for _, g := range s.Guests {
		needed[g.Image] = needed[g.Image] || g.State != fleet.GuestEnded
	}
	return m.images.Prune(func(d fleet.Digest) bool { return needed[d] || m.images.Opened(d) })
}

// errNowhere: no other controller has an image.
var errNowhere = errors.New("no other controller has it")

// seek fetches an image that is asked for here and that others have: the one of a digest, which a job needs, or one that was just
// built of a name.
func (m *mirror) seek(ctx context.Context, name string, digest fleet.Digest) error {
	failed := errNowhere
	for _, o := range m.others() {
		if digest != "" {
			if err := m.fetch(ctx, o, fleet.Image{Digest: digest}); err == nil {
				return nil
			} else {
				failed = err
			}
			continue
		}
		there, err := o.Client.ImagesThere(ctx)
		if err != nil {
			failed = err
			continue
		}
		for _, img := range there {
			if img.Name == name && time.Since(img.Built) <= justBuilt {
				return m.takeImage(ctx, o, img)
			}
		}
	}
	return failed
}
