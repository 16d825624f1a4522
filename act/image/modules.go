package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"

	"pagurus/fleet"
)

// OrderFile lists the modules in ModulesFile, one path a line, each after its
// dependencies. Those after fleet.DriverWord are for guests that have a device of their host.
const OrderFile = "/modules.order.pagurus"

// The modules that guests need. The first ones are for mounting the root, so that the
// guest agent gets there early. Some kernels have some of them built in.
var (
	required = []string{
		"virtio_pci", "virtio_blk", "squashfs", "overlay", // the root
		"virtio_console", "virtio_net", // the link and the network
		"nfsv4", // the job's files
	}
	// drivers are those of devices that guests of a cluster may be given: virtual functions of network cards, InfiniBand, and disks.
	drivers  = []string{"igbvf", "ixgbevf", "iavf", "mlx4_en", "mlx4_ib", "mlx5_core", "mlx5_ib", "bnxt_en", "rdma_ucm", "nvme"}
	optional = []string{"virtio_rng", "virtio_balloon", "xen-blkfront", "xen-netfront"}
)

// moduleTree is a kernel's unpacked modules.
type moduleTree struct {
	root    string            // contains lib/modules or usr/lib/modules
	paths   map[string]string // by module name, relative to root
	builtin map[string]bool
}

// openModules reads the tree below root/usr/lib/modules/release or
// root/lib/modules/release.
func openModules(root, release string) (*moduleTree, error) {
	t := &moduleTree{root: root, paths: map[string]string{}, builtin: map[string]bool{}}
	for _, lib := range []string{"lib", "usr/lib"} {
		dir := filepath.Join(root, lib, "modules", release)
		b, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Fields(string(b)) {
			t.builtin[moduleName(line)] = true
		}
		err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && strings.Contains(e.Name(), ".ko") {
				t.paths[moduleName(path)] = path
			}
			return err
		})
		return t, err
	}
	return nil, fmt.Errorf("no modules of kernel %s in its package", release)
}

// moduleName is the name of the module in a file: virtio_blk for
// "kernel/drivers/block/virtio-blk.ko.xz".
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// A module is one uncompressed .ko.
type module struct {
	name string
	path string // as in the guest, "/lib/modules/..."
	code []byte

	driver bool // only guests that have a device of their host load it
}

// order returns the wanted modules with all dependencies, each after its own.
func (t *moduleTree) order(wanted, optional []string) ([]module, error) {
	var out []module
	seen := map[string]bool{}
	var add func(name, by string) error
	add = func(name, by string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if seen[name] || t.builtin[name] {
			return nil
		}
		seen[name] = true
		path, ok := t.paths[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s, which %s needs", name, by)
		}
		code, err := readModule(path)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		needs, err := moduleNeeds(code)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := add(n, name); err != nil {
				return err
			}
		}
		if code, err = slim(code); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		out = append(out, module{name: name, path: t.inGuest(path), code: code})
		return nil
	}
	for _, name := range wanted {
		if err := add(name, "every guest"); err != nil {
			return nil, err
		}
	}
	for _, name := range optional {
		if t.paths[strings.ReplaceAll(name, "-", "_")] == "" {
			continue
		}
		if err := add(name, "every guest"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// withDrivers gives modules, and after them those of drivers that are not among them, as far as the kernel has any.
func (t *moduleTree) withDrivers(all []module, drivers []string) ([]module, error) {
	more, err := t.order(nil, drivers)
	if err != nil {
		return nil, err
	}
	for _, m := range more {
		if !slices.ContainsFunc(all, func(o module) bool { return o.name == m.name }) {
			m.driver = true
			all = append(all, m)
		}
	}
	return all, nil
}

// inGuest is the module's path in the guest: always below /lib/modules, uncompressed.
func (t *moduleTree) inGuest(path string) string {
	rel, _ := filepath.Rel(t.root, path) // path was found below root
	rel = strings.TrimPrefix(rel, "usr/")
	base, _, _ := strings.Cut(filepath.Base(rel), ".ko")
	return "/" + filepath.Join(filepath.Dir(rel), base+".ko")
}

// readModule decompresses a module, so that the guest agent need not.
func readModule(path string) ([]byte, error) {
	var tool string
	switch filepath.Ext(path) {
	case ".ko":
		return os.ReadFile(path)
	case ".xz":
		tool = "xz"
	case ".zst":
		tool = "zstd"
	case ".gz":
		tool = "gzip"
	default:
		return nil, fmt.Errorf("unknown compression of %s", filepath.Base(path))
	}
	b, err := exec.Command(tool, "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("decompress %s with %s: %w", filepath.Base(path), tool, err)
	}
	return b, nil
}

// moduleNeeds reads a module's own list of dependencies, as depmod does.
func moduleNeeds(code []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	var needs []string
	for _, field := range bytes.Split(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok {
			needs = append(needs, strings.FieldsFunc(list, func(r rune) bool { return r == ',' })...)
		}
	}
	return needs, nil
}

// writeModules writes ModulesFile reproducibly, of a user's own kernel with its words.
func writeModules(w io.Writer, modules []module, own *OwnKernel) error {
	c := cpio.NewWriter(w)
	files := map[string][]byte{}
	if own != nil {
		if err := writeWords(c, own.Words); err != nil {
			return err
		}
	}
	var list strings.Builder
	for _, m := range modules {
		files[m.path] = m.code
		if m.driver {
			list.WriteString(fleet.DriverWord)
		}
		list.WriteString(m.path + "\n")
	}
	files[OrderFile] = []byte(list.String())
	dirs := map[string]bool{}
	for path := range files {
		for d := filepath.Dir(path); d != "/"; d = filepath.Dir(d) {
			dirs[d] = true
		}
	}
	for d := range dirs {
		files[d] = nil
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		h := cpio.Header{Name: path[1:], Mode: cpio.TypeReg | 0o644, Size: int64(len(files[path])), Links: 1}
		if dirs[path] {
			h.Mode, h.Links = cpio.TypeDir|0o755, 2
		}
		if err := c.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := c.Write(files[path]); err != nil {
			return err
		}
	}
	return c.Close()
}
