package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Room is how much memory, in bytes, programs can still get: what is free, what the kernel can free at once, and the swap space
// that is not used.
func Room() (int64, error) {
	const file = "/proc/meminfo"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("ask for the free memory: %w", err)
	}
	room, ok := room(string(text))
	if !ok {
		return 0, fmt.Errorf("ask for the free memory: %s is not as expected", file)
	}
	return room, nil
}

// room parses /proc/meminfo.
func room(meminfo string) (bytes int64, ok bool) {
	kib := map[string]int64{}
	for l := range strings.Lines(meminfo) {
		if words := strings.Fields(l); len(words) == 3 && words[2] == "kB" {
			if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				kib[words[0]] = n
			}
		}
	}
	available, ok := kib["MemAvailable:"]
	return (available + kib["SwapFree:"]) << 10, ok // a kernel without swap space does not name it
}
