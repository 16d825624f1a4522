package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pressure reads the share of the last ten seconds in which some, or all, tasks stalled,
// from the kernel's pressure stall information.
func pressure(file, line string) (float64, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errors.New("the kernel tells no pressure; start it with psi=1")
	}
	if err != nil {
		return 0, err // EOPNOTSUPP if built in but disabled
	}
	for l := range strings.Lines(string(text)) {
		fields := strings.Fields(l)
		if len(fields) < 2 || fields[0] != line {
			continue
		}
		v, found := strings.CutPrefix(fields[1], "avg10=")
		if p, err := strconv.ParseFloat(v, 64); found && err == nil && p >= 0 && p <= 100 {
			return p / 100, nil
		}
	}
	return 0, fmt.Errorf("%s is not as expected", file)
}

// available reads the share of memory that can be used without taking any from programs
// other than guests, which hold held bytes. Reserved huge pages are excluded.
func available(file string, held int64) (float64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	kib := map[string]float64{}
	for l := range strings.Lines(string(text)) {
		if fields := strings.Fields(l); len(fields) > 1 {
			kib[fields[0]], _ = strconv.ParseFloat(fields[1], 64) // the kernel writes digits
		}
	}
	free, known := kib["MemAvailable:"]
	total := kib["MemTotal:"] - kib["Hugetlb:"]
	if !known || total <= 0 {
		return 0, fmt.Errorf("%s is not as expected", file)
	}
	return min(1, (free+float64(held>>10))/total), nil
}

// onBattery reports whether a machine runs on battery: a battery is discharging, and no
// other supply is on line. Without a battery it never does.
func onBattery(folder string) (bool, error) {
	supplies, err := os.ReadDir(folder)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the kernel has no power supplies
		}
		return false, err
	}
	discharging := false
	for _, s := range supplies {
		is := func(name, value string) bool {
			text, err := os.ReadFile(filepath.Join(folder, s.Name(), name))
			return err == nil && strings.TrimSpace(string(text)) == value
		}
		switch {
		case is("scope", "Device"): // such as a mouse's
		case is("type", "Battery"):
			discharging = discharging || is("status", "Discharging")
		case is("online", "1"):
			return false, nil
		}
	}
	return discharging, nil
}
