package main

import (
	"context"
	"log/slog"

	"pagurus/serve/controller"
	"pagurus/serve/metrics"
)

// showMeasures shows monitoring what the cluster does, until ctx ends. An empty address: nothing is shown.
func showMeasures(ctx context.Context, address string, c *controller.Controller, log *slog.Logger) error {
	if address == "" {
		return nil
	}
	l, err := metrics.Listen(address)
	if err != nil {
		return err
	}
	from := metrics.New(version, c.Measures)
	from.MustRegister(c.Monitored()...)
	go func() {
		if err := metrics.Serve(ctx, l, address, from, log); err != nil {
			log.Error("nothing is shown to monitoring until the controller starts again", "cause", err)
		}
	}()
	return nil
}
