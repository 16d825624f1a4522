package main

import (
	"errors"
	"log/slog"

	"pagurus/act/host/lean"
	"pagurus/act/machine"
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

// arrivalReserve is what a container takes while it arrives, in bytes, beside its own memory: CRIU, the agent's buffers, and the part of its
// memory that is there twice.
const arrivalReserve = 8 << 20

// smallRoom is what guests may have on a small host, in bytes, if programs can still get so much and the guests have so much already. There a
// large part of the memory is the kernel's and the system's. It does not change until the agent starts again: what arrives would change
// it.
func smallRoom(free, guests int64) int64 { return max(0, free+guests-arrivalReserve) }

// measureRoom finds out what a small host has for guests, when the agent has what it needs and no more. Where that cannot be told it is what
// another host has.
func (h *host) measureRoom(log *slog.Logger) {
	if !h.flags.Small {
		return
	}
	free, err := int64(0), lean.Shed(0)
	if err == nil {
		free, err = machine.Room()
	}
	if err != nil {
		log.Warn("how much memory is free is not known", "cause", err)
		h.room = h.machine.MemoryBytes
		return
	}
	guests := h.groups.Memory()
	h.room = smallRoom(free, guests)
	log.Info("the host is small", "free_mib", free>>20, "guests_mib", guests>>20, "for_guests_mib", h.capacity().MemoryBytes>>20)
}
