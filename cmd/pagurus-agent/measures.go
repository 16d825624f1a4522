package main

import (
	"context"
	"log/slog"

	"pagurus/decide/measures"
	"pagurus/serve/agent"
	"pagurus/serve/metrics"
)

// showMeasures shows monitoring what this host does, until ctx ends; then the channel is closed. An empty address: nothing is shown.
func showMeasures(ctx context.Context, address string, a *agent.Agent, log *slog.Logger) (ended <-chan struct{}, err error) {
	over := make(chan struct{})
	if address == "" {
		close(over)
		return over, nil
	}
	l, err := metrics.Listen(address)
	if err != nil {
		return nil, err
	}
	from := metrics.New(version, func() []measures.Family { return measures.OfHost(a.Told()) })
	go func() {
		defer close(over)
		if err := metrics.Serve(ctx, l, address, from, log); err != nil {
			log.Error("nothing is shown to monitoring until the agent starts again", "cause", err)
		}
	}()
	return over, nil
}
