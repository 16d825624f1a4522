package labmachine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Image is the folder of what machines of one kind begin with: their disk, kernel, and the
// key for their shell.
type Image struct {
	Folder string
	Xen    bool // it is the first domain of a Xen host
}

func (i Image) disk() string   { return filepath.Join(i.Folder, "disk.ext4") }
func (i Image) kernel() string { return filepath.Join(i.Folder, "vmlinuz") }
func (i Image) initrd() string { return filepath.Join(i.Folder, "initrd.img") }
func (i Image) key() string    { return filepath.Join(i.Folder, "key") }
func (i Image) xen() string    { return filepath.Join(i.Folder, "xen") }

// Suites are the releases of Debian that machines may have.
var Suites = []string{"trixie", "bookworm"}

// Recipe is what an image is made of.
type Recipe struct {
	Suite    string
	Packages []string // beside those of every machine
	Bring    []string // a command on this machine's files that brings CRIU, if this machine has none
	Xen      bool     // it is a Xen host
}

// always are the packages of every machine: a kernel with all modules, what starts it, and
// what a person who looks at it needs.
var always = []string{
	"linux-image-amd64", "initramfs-tools", "zstd", "systemd-sysv", "dbus", "udev", "kmod", "openssh-server", "iproute2", "iputils-ping",
	"procps", "util-linux", "nfs-common",
}

// onMetal are those of a machine without Xen. The boot loader is not used: QEMU loads the kernel. But what makes its configuration can be tried.
var onMetal = []string{"grub2-common"}

// onXen are the packages of a Xen host beside them.
var onXen = []string{"xen-system-amd64"}

// modules are those that the machine's first file system loads: the disk's, and the network's,
// so that links are there before services start.
var modules = []string{"virtio_pci", "virtio_blk", "ext4", "virtio_net"}

const (
	diskBytes = 8 << 30 // of a machine's disk, sparse
	// room is what a build takes for a moment: the tree, and the disk of it.
	room = 3 << 30
	// endLimit is how long a cancelled build may tidy up.
	endLimit = 30 * time.Second
	building = "building-"
)

// criuFolder is a CRIU with all its libraries, which every machine gets from this one.
const criuFolder = "/opt/pagurus-criu"

func (r Recipe) packages() []string {
	all := append(slices.Clone(always), r.Packages...)
	if r.Xen {
		all = append(all, onXen...)
	} else {
		all = append(all, onMetal...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// digest names what the image follows from.
func (r Recipe) digest() string {
	criu, _ := os.ReadFile(filepath.Join(criuFolder, "packages")) // there may be none
	text := fmt.Sprintln(r.Suite, r.packages(), modules, diskBytes, arguments, content(""), string(criu))
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// name is the name of the image's folder.
func (r Recipe) name() string { return r.kind() + "-" + r.digest() }

// kind is what images have in common if one replaces the others.
func (r Recipe) kind() string {
	if r.Xen {
		return "xen-" + r.Suite
	}
	return r.Suite
}

// Find gives the image of a recipe, if it is built in a folder.
func (r Recipe) Find(folder string) (Image, bool) {
	i := Image{Folder: filepath.Join(folder, r.name()), Xen: r.Xen}
	_, err := os.Stat(i.Folder)
	return i, err == nil
}

// Build builds the image of a recipe in a folder, unless it is there. It removes the older ones
// of its kind. After an error nothing of it is left. show is told of progress.
func (r Recipe) Build(ctx context.Context, folder string, show func(step string, fraction float64)) (i Image, err error) {
	i, built := r.Find(folder)
	if built {
		return i, nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("building a machine of Debian's %s: %w", r.Suite, err)
		}
	}()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return i, err
	}
	abandoned, _ := filepath.Glob(filepath.Join(folder, building+"*")) // one build at a time: the caller's lock
	for _, dir := range abandoned {
		if err := os.RemoveAll(dir); err != nil {
			return i, err
		}
	}
	if err := hasRoom(folder); err != nil {
		return i, err
	}
	work, err := os.MkdirTemp(folder, building)
	if err != nil {
		return i, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.Chmod(work, 0o755); err != nil { // apt fetches as a user of its own
		return i, err
	}
	if err := r.make(ctx, work, show); err != nil {
		return i, err
	}
	older, _ := filepath.Glob(filepath.Join(folder, r.kind()+"-*"))
	for _, dir := range older {
		if err := os.RemoveAll(dir); err != nil {
			return i, err
		}
	}
	return i, os.Rename(filepath.Join(work, "image"), i.Folder)
}

// hasRoom says whether the disk has room for a build.
func hasRoom(folder string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return fmt.Errorf("asking for the room in %s: %w", folder, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < room {
		return fmt.Errorf("the disk of %s has %d MiB free, and %d are needed for a moment: make room there", folder, free>>20, int64(room)>>20)
	}
	return nil
}

// make makes the image in work/image.
func (r Recipe) make(ctx context.Context, work string, show func(string, float64)) error {
	tree, image := filepath.Join(work, "tree"), Image{Folder: filepath.Join(work, "image"), Xen: r.Xen}
	if err := os.Mkdir(image.Folder, 0o755); err != nil {
		return err
	}
	if err := run(ctx, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "a machine of a lab", "-f", image.key()); err != nil {
		return err
	}
	public, err := os.ReadFile(image.key() + ".pub")
	if err != nil {
		return err
	}
	// In a mount namespace of its own, so that nothing stays mounted in the tree.
	if err := run(ctx, progress(show), "unshare", append([]string{"--mount", "--propagation", "private", "mmdebstrap"}, r.bootstrap(tree)...)...); err != nil {
		return err
	}
	if err := furnish(tree, string(public)); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(criuFolder, "bin/criu")); err == nil {
		if err := run(ctx, nil, "cp", "-a", criuFolder, filepath.Join(tree, "opt")); err != nil {
			return err
		}
	}
	for name, pattern := range map[string]string{image.kernel(): "boot/vmlinuz-*", image.initrd(): "boot/initrd.img-*"} {
		found, _ := filepath.Glob(filepath.Join(tree, pattern))
		if len(found) != 1 {
			return fmt.Errorf("it has %d files %s, not one", len(found), pattern)
		}
		if err := run(ctx, nil, "cp", found[0], name); err != nil {
			return err
		}
	}
	if r.Xen {
		if err := unpackXen(ctx, tree, image); err != nil {
			return err
		}
	}
	show("making its disk", disk)
	return r.format(ctx, tree, image)
}

// unpackXen takes the hypervisor from the tree, unpacked, as QEMU loads it.
func unpackXen(ctx context.Context, tree string, image Image) error {
	found, _ := filepath.Glob(filepath.Join(tree, "boot/xen-*-amd64.gz"))
	if len(found) != 1 {
		return fmt.Errorf("it has %d hypervisors, not one", len(found))
	}
	text, err := exec.CommandContext(ctx, "gzip", "-dc", found[0]).Output()
	if err != nil {
		return fmt.Errorf("unpacking the hypervisor: %w", err)
	}
	return os.WriteFile(image.xen(), text, 0o644)
}

// format makes the disk of the tree.
func (r Recipe) format(ctx context.Context, tree string, image Image) error {
	f, err := os.Create(image.disk())
	if err == nil {
		err = errors.Join(f.Truncate(diskBytes), f.Close())
	}
	if err != nil {
		return err
	}
	return run(ctx, nil, "mke2fs", "-q", "-t", "ext4", "-d", tree, image.disk())
}

// arguments are mmdebstrap's that change what is built.
var arguments = []string{"--mode=root", "--variant=apt", `--aptopt=APT::Install-Recommends "false"`, "--dpkgopt=force-unsafe-io",
	"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"}

// bootstrap are mmdebstrap's arguments. The first file system is made with the modules that
// it needs alone: a third of the size, so that machines start sooner.
func (r Recipe) bootstrap(tree string) []string {
	lean := `set -e
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
echo MODULES=list >"$1/etc/initramfs-tools/conf.d/lab"
printf '%s\n' ` + strings.Join(modules, " ") + ` >"$1/usr/share/initramfs-tools/modules.d/lab"`
	args := append(slices.Clone(arguments), "--include="+strings.Join(r.packages(), ","), "--essential-hook="+lean)
	if _, err := os.Stat(filepath.Join(criuFolder, "bin/criu")); err != nil && len(r.Bring) > 0 {
		args = append(args, "--customize-hook=upload "+r.Bring[0]+" /bring",
			`--customize-hook=set -e; chroot "$1" /bring `+strings.Join(r.Bring[1:], " ")+`; rm "$1/bring"`)
	}
	return append(args, r.Suite, tree)
}

// lastWords is how much of what a failed program said an error shows.
const lastWords = 800

// run runs a program to its end. It is told to end when ctx is done, and may tidy up. Lines
// that it writes to its error output go to line.
func run(ctx context.Context, line func(string), program string, args ...string) error {
	c := exec.CommandContext(ctx, program, args...)
	said := &listener{line: line}
	c.Stdout, c.Stderr = said, said
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = endLimit
	if err := c.Run(); err != nil {
		all := bytes.TrimSpace(said.all.Bytes())
		return fmt.Errorf("%s: %w: %s", program, cmp.Or(ctx.Err(), err), all[max(0, len(all)-lastWords):])
	}
	return nil
}

// listener keeps what is written, and calls line for each whole line.
type listener struct {
	all  bytes.Buffer
	rest []byte
	line func(string)
}

func (l *listener) Write(p []byte) (int, error) {
	n, _ := l.all.Write(p) // cannot fail
	l.rest = append(l.rest, p...)
	for {
		at := bytes.IndexByte(l.rest, '\n')
		if at < 0 {
			return n, nil
		}
		if l.line != nil {
			l.line(string(l.rest[:at]))
		}
		l.rest = l.rest[at+1:]
	}
}

// What part of a build is behind a step of mmdebstrap's, and behind all of them.
const (
	step = 0.09
	disk = 0.9
)

// progress tells of mmdebstrap's progress.
func progress(show func(string, float64)) func(string) {
	done := 0.0
	return func(line string) {
		if what, ok := strings.CutPrefix(line, "I: "); ok && !strings.Contains(what, "hook") {
			show(what, min(done, disk))
			done += step
		}
	}
}

// furnish writes what makes the tree a machine of a lab.
func furnish(tree, public string) error {
	for _, f := range content(public) {
		path := filepath.Join(tree, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		err := error(nil)
		switch {
		case f.mode == fs.ModeSymlink:
			err = os.Symlink(f.text, path)
		case f.mode != 0:
			err = errors.Join(os.WriteFile(path, []byte(f.text), f.mode), os.Chmod(path, f.mode))
		}
		if err != nil {
			return fmt.Errorf("writing /%s: %w", f.path, err)
		}
	}
	return os.Chmod(filepath.Join(tree, "root/.ssh"), 0o700)
}
