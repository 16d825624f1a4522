package main

import (
	"fmt"
	"os"
	"strings"
)

// machineFiles hold this machine's identity: what installation gave it, or,
// where it was given none, what the kernel gives it for as long as it is up.
var machineFiles = []string{"/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"}

// thisMachine says which machine this is: two processes with the same answer
// see the same files.
func thisMachine() (string, error) {
	for _, path := range machineFiles {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) != "" {
			return strings.TrimSpace(string(text)), nil
		}
	}
	return "", fmt.Errorf("this machine has no identity: none of %s says one; `systemd-machine-id-setup` makes one", strings.Join(machineFiles, ", "))
}
