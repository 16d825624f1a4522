package qemu

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"pagurus/act/host/jail"
	"pagurus/fleet"
)

// Limits of a guest's QEMU.
const (
	// largestFile is the largest file, in bytes, that a guest can make QEMU write on this host: its console. Output
	// beyond it is lost.
	largestFile = 256 << 10
	openFiles   = 1024
	// overhead is QEMU's own, beside the guest's: its program, what it reads of the image, a thread's
	// stacks, and buffers of a move. overheadPart is more of it for larger guests: page tables, and bits for changed pages.
	overhead     = 512 << 20
	overheadPart = 32
	// translated is the most that QEMU keeps of code that it has translated.
	translated = 1 << 30
	// overheadTasks are QEMU's threads, beside one for each of the guest's CPUs: it makes up to 64 to read
	// files, and a few for devices and for a move.
	overheadTasks = 256
)

// confine holds a guest's QEMU to what it needs, so that it cannot use up the host.
func (d *Driver) confine(m machine, pid int) error {
	if d.config.Cgroups == nil {
		return nil
	}
	most := wholeMemory(m) + odd(m) + overhead + m.memoryBytes/overheadPart
	if m.accelerator == Emulation {
		most += translated
	}
	return d.config.Cgroups.Confine(m.guest, fleet.Resources{CPUs: m.cpus, MemoryBytes: most}, overheadTasks+m.cpus, pid)
}

// jail is what a guest's QEMU has on this host: its folder, what it is loaded and boots from, and
// the devices that it uses by name. Taps and vhost-net are given to it open.
func (d *Driver) jail(ctx context.Context, m machine) (jail.Jail, error) {
	dir := d.dir(m.guest)
	j := jail.Jail{
		UID: m.uid, GID: m.uid, Root: d.config.Run, Hostname: string(m.guest), Folder: dir,
		Program: append([]string{d.binary}, args(m)...), Env: []string{"LC_ALL=C"},
		FileBytes: largestFile, OpenFiles: openFiles, Network: m.byHand,
	}
	needs, err := d.needs.of(ctx, d.binary)
	if err != nil {
		return j, err
	}
	j.Files = append(slices.Clone(needs), jail.File{Path: dir, Writable: true})
	for _, path := range []string{m.kernel, m.initrd, m.root} {
		j.Files = append(j.Files, jail.File{Path: path})
	}
	devices := []string{"/dev/null", "/dev/urandom"}
	if m.accelerator == Hardware {
		devices = append(devices, kvmDevice)
	}
	if _, err := os.Stat(device); err == nil && (d.able().NoPostCopy == "" || d.able().Saves) {
		devices = append(devices, device)
	}
	for _, path := range devices {
		dev, err := jail.DeviceAt(path)
		if err != nil {
			return j, err
		}
		j.Devices = append(j.Devices, dev)
	}
	if m.device != nil {
		return j, admit(&j, m)
	}
	return j, nil
}

// needs are the files that QEMU is made of on this host: its program and libraries, its firmware and its
// modules. They are looked for again when one of them has changed, as after an update: a new library may need others.
type needs struct {
	mu    sync.Mutex
	seen  map[string]os.FileInfo // as they were
	files []jail.File
}

func (n *needs) of(ctx context.Context, binary string) ([]jail.File, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.seen[binary]; known && unchanged(n.seen) {
		return n.files, nil
	}
	files, err := jail.Libraries(ctx, binary)
	if err != nil {
		return nil, err
	}
	said, err := exec.CommandContext(ctx, binary, "-L", "help").Output() // its folders of firmware, a line each
	if err != nil {
		return nil, err
	}
	files = append(files, jail.Existing(strings.Fields(string(said))...)...)
	for _, folder := range moduleFolders(files) {
		for _, f := range jail.Existing(folder) {
			f.Runs = true
			files = append(files, f)
		}
	}
	seen := map[string]os.FileInfo{}
	for _, f := range files {
		if seen[f.Path], err = os.Stat(f.Path); err != nil {
			return nil, err
		}
	}
	n.seen, n.files = seen, files
	return files, nil
}

// unchanged reports whether all files are as they were seen.
func unchanged(seen map[string]os.FileInfo) bool {
	for path, was := range seen {
		now, err := os.Stat(path)
		if err != nil || !os.SameFile(was, now) || !was.ModTime().Equal(now.ModTime()) || was.Size() != now.Size() {
			return false
		}
	}
	return true
}

// moduleFolders are where distributions have QEMU's modules: below the folders of its libraries.
func moduleFolders(files []jail.File) (all []string) {
	for _, f := range files {
		if f.Runs {
			if dir, err := filepath.EvalSymlinks(filepath.Dir(f.Path)); err == nil {
				all = append(all, filepath.Join(dir, "qemu"), filepath.Join(dir, "qemu-kvm"))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
