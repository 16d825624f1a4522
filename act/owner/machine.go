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

// pressure reads for what part of the last ten seconds some, or all, tasks
// stalled for want of something, as the kernel's pressure stall information
// has it.
func pressure(file, line string) (float64, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errors.New("the kernel tells no pressure; start it with psi=1")
	}
	if err != nil {
		return 0, err // EOPNOTSUPP where it is built in and off
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

// available reads what part of the memory can still be had without anybody but
// guests, who hold so many bytes, having to give up what they use. Huge pages
// were set aside once and for all, so they are left out of the whole.
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

// onBattery reports whether a machine that has a battery runs on it: there is
// one that is discharging, and no other supply is on line. A machine without a
// battery never does.
func onBattery(folder string) (bool, error) {
	supplies, err := os.ReadDir(folder)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the kernel knows of no supplies at all
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
		case is("scope", "Device"): // a mouse's or the like
		case is("type", "Battery"):
			discharging = discharging || is("status", "Discharging")
		case is("online", "1"):
			return false, nil
		}
	}
	return discharging, nil
}
