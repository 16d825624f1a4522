package container

import (
	"pagurus/act/container/memory"
	"pagurus/act/container/sandbox"
	"pagurus/act/container/shim"
)

// Become makes a test the helper process of containers that it was started as.
func Become() { shim.Become(memory.Shims, sandbox.Shims) }
