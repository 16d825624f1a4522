package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// legacy is version 1: one tree for limits and one for accounting, which may be the same.
type legacy struct{ systems []cgroup1.Subsystem }

func openLegacy() (legacy, error) {
	all, err := cgroup1.Default()
	if err != nil {
		return legacy{}, err
	}
	var l legacy
	for _, s := range all {
		if s.Name() == cgroup1.Cpu || s.Name() == cgroup1.Cpuacct {
			l.systems = append(l.systems, s)
		}
	}
	if len(l.systems) == 0 {
		return legacy{}, errors.New("the cpu controller is not mounted")
	}
	return l, nil
}

func (l legacy) options() cgroup1.InitOpts {
	return cgroup1.WithHierarchy(func() ([]cgroup1.Subsystem, error) { return l.systems, nil })
}

// sharesPerCPU is the kernel's default for a group.
const sharesPerCPU = 1024

func (l legacy) make(path string, want limits) error {
	shares := weightOf(want, sharesPerCPU)
	every, most := uint64(period.Microseconds()), int64(-1)
	if want.cpus > 0 {
		most = quota(want.cpus).Microseconds()
	}
	cpu := &specs.LinuxCPU{Shares: &shares, Period: &every, Quota: &most}
	if isIdle(l.folder(path)) {
		cpu.Shares = nil // the kernel refuses a weight
	}
	_, err := cgroup1.New(cgroup1.StaticPath(path), &specs.LinuxResources{CPU: cpu}, l.options())
	return err
}

// folder is the folder of a group's limits.
func (l legacy) folder(path string) string {
	for _, s := range l.systems {
		if p, is := s.(interface{ Path(string) string }); is && s.Name() == cgroup1.Cpu {
			return p.Path(path)
		}
	}
	return ""
}

func (l legacy) idle(path string, on bool) error {
	return setIdle(l.folder(path), on)
}

func (l legacy) processes(path string) ([]int, error) { return readProcesses(l.folder(path)) }

func (l legacy) load(path string) (cgroup1.Cgroup, error) {
	c, err := cgroup1.Load(cgroup1.StaticPath(path), l.options())
	if errors.Is(err, cgroup1.ErrCgroupDeleted) {
		return nil, os.ErrNotExist
	}
	return c, err
}

func (l legacy) add(path string, pid int) error {
	c, err := l.load(path)
	if err != nil {
		return err
	}
	if err := c.Add(cgroup1.Process{Pid: pid}); err != nil {
		return err
	}
	return addIsolated(path, pid)
}

// addIsolated moves a process to the isolated CPUs, if any: then the outermost of its
// groups also exists in the cpuset tree. Version 2 has one tree.
func addIsolated(at string, pid int) error {
	root, err := hierarchy("cpuset")
	if err != nil {
		return nil // it can have no group there
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/")
	return gone(write(filepath.Join(root, first), procs, strconv.Itoa(pid)))
}

func (l legacy) remove(path string) error {
	c, err := l.load(path)
	if err == nil {
		err = c.Delete()
	}
	return gone(err)
}

func (l legacy) used(path string) (time.Duration, error) {
	c, err := l.load(path)
	if err != nil {
		return 0, err
	}
	m, err := c.Stat()
	if err != nil {
		return 0, err
	}
	return time.Duration(m.GetCPU().GetUsage().GetTotal()), nil
}
