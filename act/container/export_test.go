package container

import (
	"time"

	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/shim"
	"pagurus/act/container/thaw"
)

// Become makes a test the helper process of containers that it was started as.
func Become() { shim.Become(memory.Shims, sandbox.Shims, thaw.Shims) }

// HoldCuts sets how long guests stay suspended without being told to continue, until the returned
// function is called.
func HoldCuts(limit time.Duration) (back func()) {
	before := cutHold
	cutHold = limit
	return func() { cutHold = before }
}

// HoldByGuards is HoldCuts for what happens if the driver does nothing.
func HoldByGuards(limit time.Duration) (back func()) {
	before := guardHold
	guardHold = limit
	return func() { guardHold = before }
}
