package cgroup

import (
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
)

// unified is version 2: one tree for everything.
type unified struct{}

const mountPoint = "/sys/fs/cgroup"

// A CPU's weight is the kernel's default for a group; there is a maximum.
const (
	weightPerCPU = 100
	weightMost   = 10000
)

func (unified) make(path string, want limits) error {
	weight := min(weightMost, weightOf(want, weightPerCPU))
	every := uint64(period.Microseconds())
	var most *int64
	if want.cpus > 0 {
		n := quota(want.cpus).Microseconds()
		most = &n
	}
	cpu := &cgroup2.CPU{Weight: &weight, Max: cgroup2.NewCPUMax(most, &every)}
	if isIdle(filepath.Join(mountPoint, path)) {
		cpu.Weight = nil // the kernel refuses a weight
	}
	_, err := cgroup2.NewManager(mountPoint, path, &cgroup2.Resources{CPU: cpu})
	return err
}

func (unified) idle(path string, on bool) error {
	return setIdle(filepath.Join(mountPoint, path), on)
}

func (unified) processes(path string) ([]int, error) {
	own, err := readProcesses(filepath.Join(mountPoint, path))
	if err != nil {
		return nil, err
	}
	contained, err := readProcesses(filepath.Join(mountPoint, path, inside))
	return append(own, contained...), gone(err)
}

func (unified) load(path string) (*cgroup2.Manager, error) {
	if _, err := os.Stat(filepath.Join(mountPoint, path)); err != nil {
		return nil, err
	}
	return cgroup2.Load(path)
}

func (u unified) add(path string, pid int) error {
	m, err := u.load(path)
	if err != nil {
		return err
	}
	return m.AddProc(uint64(pid))
}

func (u unified) remove(path string) error {
	m, err := u.load(path)
	if err == nil {
		err = m.Delete()
	}
	return gone(err)
}

func (u unified) used(path string) (time.Duration, error) {
	m, err := u.load(path)
	if err != nil {
		return 0, err
	}
	s, err := m.StatFiltered(cgroup2.StatCPU)
	if err != nil {
		return 0, err
	}
	return time.Duration(s.GetCPU().GetUsageUsec()) * time.Microsecond, nil
}
