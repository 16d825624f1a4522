// Package initrd makes what a guest's kernel finds as its first file system: an image's modules and the
// guest agent, which is the guest's first process. Drivers whose guests have a kernel of their own
// share it. It knows nothing of guests. Its tests read the result back.
package initrd

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// kept is the number of initrds kept on a host, about the number of images in use. One is
// read only when a guest starts.
const kept = 4

// Store holds the initrds of one host.
type Store struct {
	path string
	mu   sync.Mutex
}

// Open opens an existing folder, and removes the incomplete files of an agent that
// died.
func Open(path string) (*Store, error) { return &Store{path: path}, prune(path, kept) }

// Make returns the initrd with the modules of an image, given by its folder, and the
// guest agent. It is made once for the same two files. After an error nothing incomplete
// is left.
func (f *Store) Make(image, guestAgent string) (path string, err error) {
	modules, err := os.Open(filepath.Join(image, "modules.cpio"))
	if err != nil {
		return "", fmt.Errorf("read the image: %w", err)
	}
	defer modules.Close()
	agent, err := os.Open(guestAgent)
	if err != nil {
		return "", fmt.Errorf("read the guest agent: %w; it belongs beside the pagurus binary", err)
	}
	defer agent.Close()
	name, err := nameOf(modules, agent)
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path = filepath.Join(f.path, name)
	now := time.Now()
	if os.Chtimes(path, now, now) == nil {
		return path, nil
	}
	if err := prune(f.path, kept-1); err != nil {
		return "", err
	}
	out, err := os.CreateTemp(f.path, ".new-*")
	if err != nil {
		return "", fmt.Errorf("make an initrd: %w", err)
	}
	err = errors.Join(write(out, modules, agent), out.Chmod(0o644), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("make an initrd: %w", errors.Join(err, ignoreAbsent(os.Remove(out.Name()))))
	}
	return path, nil
}

// WordsFile is what a kernel of a user's own gets on its command line, which may be nothing. Modules begin with it, so that it counts for
// the image's digest and comes with them.
const WordsFile = "kernel.words.pagurus"

// Words reports whether an image, given by its folder, has a kernel of a user's own, and its words. They are checked again, since
// the image may come from elsewhere.
func Words(image string) (words string, own bool, err error) {
	f, err := os.Open(filepath.Join(image, "modules.cpio"))
	if err != nil {
		return "", false, fmt.Errorf("read the image: %w", err)
	}
	defer f.Close()
	modules := cpio.NewReader(f)
	first, err := modules.Next()
	if err != nil || first.Name != WordsFile {
		return "", false, nil // whoever loads modules says what is wrong with them
	}
	text, err := io.ReadAll(io.LimitReader(modules, 64<<10))
	if err != nil {
		return "", true, fmt.Errorf("read the image's words for its kernel: %w", err)
	}
	if reason := fleet.RefusedKernelWords(string(text)); reason != "" {
		return "", true, fmt.Errorf("read the image: %s", reason)
	}
	return string(text), true, nil
}

// nameOf is a digest of the guest agent, and of the identity of the modules file. The
// modules' content is too large to read at every start. A replaced modules file has
// another identity. A guest agent rebuilt from the same source has the same digest, so
// that snapshots stay valid.
func nameOf(modules, agent *os.File) (string, error) {
	sum := sha256.New()
	var st unix.Stat_t
	if err := unix.Fstat(int(modules.Fd()), &st); err != nil {
		return "", fmt.Errorf("read %s: %w", modules.Name(), err)
	}
	fmt.Fprintln(sum, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
	if _, err := io.Copy(sum, agent); err != nil {
		return "", fmt.Errorf("read the guest agent: %w", err)
	}
	if _, err := agent.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("read the guest agent: %w", err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:16]), nil
}

// write writes two archives in sequence, which the kernel reads as one.
func write(out io.Writer, modules io.Reader, agent *os.File) error {
	n, err := io.Copy(out, modules)
	if err != nil {
		return fmt.Errorf("copy the modules: %w", err)
	}
	// An archive begins at a multiple of four bytes.
	if _, err := out.Write(make([]byte, -n&3)); err != nil {
		return err
	}
	return writeAgent(out, agent)
}

// writeAgent writes an archive with the guest agent as /init and the folders for its
// mounts. The kernel's own initramfs has /dev/console.
func writeAgent(out io.Writer, agent *os.File) error {
	info, err := agent.Stat()
	if err != nil {
		return err
	}
	w := cpio.NewWriter(out)
	for _, dir := range []string{"dev", "proc", "sys", "root", "newroot"} {
		if err := w.WriteHeader(&cpio.Header{Name: dir, Mode: cpio.TypeDir | 0o755, Links: 2}); err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&cpio.Header{Name: "init", Mode: cpio.TypeReg | 0o755, Links: 1, Size: info.Size()}); err != nil {
		return err
	}
	if _, err := io.Copy(w, agent); err != nil {
		return fmt.Errorf("copy the guest agent: %w", err)
	}
	return w.Close()
}

// prune keeps the most recently used files in dir, and removes incomplete ones.
func prune(dir string, keep int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("tidy %s: %w", dir, err)
	}
	type file struct {
		path string
		used time.Time
	}
	var files []file
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		switch {
		case err != nil:
		case e.Name()[0] == '.':
			os.Remove(path)
		default:
			files = append(files, file{path, info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return b.used.Compare(a.used) })
	for _, f := range files[min(keep, len(files)):] {
		if err := ignoreAbsent(os.Remove(f.path)); err != nil {
			return fmt.Errorf("tidy %s: %w", dir, err)
		}
	}
	return nil
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
