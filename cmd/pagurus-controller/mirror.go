package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"pagurus/act/image"
	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/controller"
)

// mirrorEvery is how often a controller looks for images that others have.
const mirrorEvery = 10 * time.Second

// justBuilt is the age up to which the controller that leads fetches an image that was built beside another.
const justBuilt = 10 * time.Minute

// mirror keeps every image of the other controllers here as well, until ctx ends. Of two images with one name
// the one that was made later has it.
//
// One that was removed here is not fetched again by the controller that leads; the others have it until it is
// removed there.
func mirror(ctx context.Context, images *image.Store, h *heads, log *slog.Logger) {
	for pause.For(ctx, mirrorEvery) == nil {
		for _, o := range h.list() {
			there, err := o.Client.ImagesThere(ctx)
			if err != nil {
				continue // asked again
			}
			for _, img := range there {
				if h.leading() && time.Since(img.Built) > justBuilt {
					continue
				}
				if err := fetchImage(ctx, images, o, img, log); err != nil && ctx.Err() == nil {
					log.Warn("an image is not yet here", "image", img.Name, "controller", o.Name, "cause", err)
				}
			}
		}
	}
}

// fetchImage makes an image of another controller present, and gives it its name.
func fetchImage(ctx context.Context, images *image.Store, from controller.Other, img fleet.Image, log *slog.Logger) error {
	if had, err := images.Find(img.Name); err == nil && (had.Digest == img.Digest || !had.Built.Before(img.Built)) {
		return nil
	}
	images.FetchWith(func(ctx context.Context, d fleet.Digest, file string, w io.Writer) error {
		return from.Client.FetchImageBetween(ctx, d, file, w)
	})
	if _, err := images.Ensure(ctx, img.Digest); err != nil {
		return err
	}
	if _, err := images.Remember(img); err != nil {
		return err
	}
	log.Info("took over an image", "image", img.Name, "digest", img.Digest, "controller", from.Name)
	return nil
}
