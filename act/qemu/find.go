package qemu

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// findRAM finds the guest's memory in a QEMU through its monitor. ask sends a command and
// decodes the answer. The memory stays in place as long as QEMU lives.
func findRAM(ctx context.Context, pid int, ask func(ctx context.Context, command string, args, out any) error) (ramArea, error) {
	var size struct {
		Base int64 `json:"base-memory"`
	}
	if err := ask(ctx, "query-memory-size-summary", nil, &size); err != nil {
		return ramArea{}, err
	}
	// No machine-readable command gives it. Physical address 0 is the first byte of the
	// single block that is the guest's memory.
	var said string
	if err := ask(ctx, "human-monitor-command", map[string]any{"command-line": "gpa2hva 0"}, &said); err != nil {
		return ramArea{}, err
	}
	_, address, _ := strings.Cut(said, " is 0x")
	start, err := strconv.ParseUint(strings.TrimSpace(address), 16, 64)
	if err != nil || size.Base <= 0 {
		return ramArea{}, fmt.Errorf("qemu does not tell where the memory is: it says %.100q", said)
	}
	return ramArea{PID: pid, Start: uintptr(start), Bytes: size.Base}, nil
}
