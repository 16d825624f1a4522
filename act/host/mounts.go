package host

import (
	"fmt"

	"github.com/moby/sys/mountinfo"
)

// MountsBelow lists this process's mounts at and below a folder, the outermost first. A
// folder with several mounts is listed once for each.
func MountsBelow(folder string) (points []string, err error) {
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(folder))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range found {
		points = append(points, m.Mountpoint)
	}
	return points, nil
}
