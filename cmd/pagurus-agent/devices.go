package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"pagurus/act/machine"
	"pagurus/cmd/roles"
)

// devicesFolder has a file for each device of the machine that a guest has.
const devicesFolder = "devices"

// openLending opens a host whose guests may have devices of the machine. What guests that have ended still have is taken back.
func openLending(ctx context.Context, f roles.Agent, log *slog.Logger) (*host, error) {
	h, err := openHost(ctx, f, log)
	if err != nil {
		return nil, err
	}
	loans := &machine.DeviceLoans{Run: filepath.Join(f.RunDir, devicesFolder), Lending: f.Lending, Card: f.Card}
	loans.Steered = func() {
		if h.network == nil {
			return
		}
		if err := h.network.Steered(ctx); err != nil {
			log.Warn("frames for a guest of this host take the wrong way for now", "cause", err)
		}
	}
	h.devices.Loans = loans
	if h.vm != nil {
		if err := h.vm.LendDevices(loans); err != nil {
			log.Warn("a device that no guest has any more is not given back", "cause", err)
		}
	}
	return h, nil
}
