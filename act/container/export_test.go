package container

import (
	"time"

	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/shim"
)

// Become makes a test the helper process of containers that it was started as.
func Become() { shim.Become(memory.Shims, sandbox.Shims) }

// HoldCuts sets how long guests stay suspended without being told to continue, until the returned
// function is called.
func HoldCuts(limit time.Duration) (back func()) {
	before := cutHold
	cutHold = limit
	return func() { cutHold = before }
}
