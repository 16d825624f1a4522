package host

import (
	"os"
	"strings"
)

// capabilities is where a kernel that runs on Xen says what its domain may do.
const capabilities = "/proc/xen/capabilities"

// IsXen reports whether this is the first domain of a Xen host.
func IsXen() bool { return controls(capabilities) }

func controls(path string) bool {
	text, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(text), "control_d")
}
