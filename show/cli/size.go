package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseBytes reads a size as people write it: 512M, 1.5G, 2GiB, 1048576. The
// units are powers of 1024.
func ParseBytes(s string) (int64, error) {
	text := strings.ToUpper(strings.TrimSpace(s))
	text = strings.TrimSuffix(strings.TrimSuffix(text, "B"), "I")
	unit := 1.0
	if n := len(text); n > 0 {
		if i := strings.IndexByte("KMGT", text[n-1]); i >= 0 {
			unit, text = math.Pow(1024, float64(i+1)), text[:n-1]
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n*unit >= 1) || n*unit >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is no size: write it like 512M or 1.5G", s)
	}
	return int64(n * unit), nil
}
