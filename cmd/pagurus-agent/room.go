package main

import (
	"errors"

	"pagurus/decide/quota"
	"pagurus/fleet"
)

// roomForImages says why this host has no room for an image that it has to fetch; nil: it has.
func (h *host) roomForImages(there []fleet.Image, more fleet.Image) error {
	if reason := quota.RefusedFetched(h.flags.Images, there, more); reason != "" {
		return errors.New(reason)
	}
	return nil
}
