package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cavaliergopher/cpio"

	"pagurus/act/host/initrd"
	"pagurus/fleet"
)

// OwnKernel is a kernel of a user's own, instead of Debian's. It has built in what guests need, unless an image here has the same
// kernel, whose modules it has then.
type OwnKernel struct {
	Sum     string       `json:"sum"`               // SHA-256 of what QEMU starts
	Words   string       `json:"words,omitempty"`   // of its own, for its command line
	Modules fleet.Digest `json:"modules,omitempty"` // of these; empty: it has none. Build finds them
	Release string       `json:"-"`                 // as uname -r says

	code    []byte // what QEMU starts
	modules string // a file with the modules
}

// largestKernel bounds a kernel's file: Debian's largest is 100 MiB without its packing. Tests have less.
var largestKernel int64 = 512 << 20

// errLarger is wrapped by the error of a kernel that is larger than that.
var errLarger = errors.New("it is larger")

// IsKernelFile reports whether the value of --kernel is a file, and not a word for one of Debian's kernels.
func IsKernelFile(kernel string) bool {
	if kernels[kernel] != "" {
		return false
	}
	_, err := os.Stat(kernel)
	return strings.Contains(kernel, "/") || kernel != "" && err == nil
}

// ReadKernel reads a user's kernel: an ELF file with a PVH entry, a bzImage, or one of them packed by gzip, xz or zstd.
func ReadKernel(ctx context.Context, path, words string) (*OwnKernel, error) {
	words = strings.Join(strings.Fields(words), " ")
	if reason := fleet.RefusedKernelWords(words); reason != "" {
		return nil, errors.New(reason)
	}
	code, err := readKernel(path)
	if err == nil {
		code, err = startable(ctx, code)
	}
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", path, err)
	}
	k := &OwnKernel{Words: words, Release: releaseOf(ctx, code), code: code}
	if k.Release == "" {
		return nil, fmt.Errorf("kernel %s: it does not say that it is a Linux", path)
	}
	sum := sha256.Sum256(code)
	k.Sum = hex.EncodeToString(sum[:])
	return k, nil
}

func readKernel(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is not a file"))
	}
	code, err := io.ReadAll(io.LimitReader(f, largestKernel+1))
	if err == nil && int64(len(code)) > largestKernel {
		err = fmt.Errorf("%w than %d MiB", errLarger, largestKernel>>20)
	}
	return code, err
}

// errNoKernel says what a kernel may be.
var errNoKernel = errors.New("it is neither an ELF file that QEMU can start (with a PVH entry: CONFIG_PVH=y), nor a bzImage, nor one of them packed by gzip, xz or zstd")

// startable is what QEMU starts of a kernel's file.
func startable(ctx context.Context, code []byte) ([]byte, error) {
	for magic, tool := range decompressors {
		if bytes.HasPrefix(code, []byte(magic)) {
			cmd := exec.CommandContext(ctx, tool[0], tool[1:]...)
			cmd.Stdin = bytes.NewReader(code)
			plain, err := atMost(cmd, largestKernel)
			if err != nil {
				return nil, fmt.Errorf("unpack it with %s: %w", tool[0], err)
			}
			code = plain
			break
		}
	}
	if hasPVH(code) {
		return code, nil
	}
	plain, err := unpackKernel(ctx, code)
	switch {
	case errors.Is(err, errLarger):
		return nil, fmt.Errorf("unpack what is in it: %w", err)
	case err != nil:
		return nil, errNoKernel
	}
	if hasPVH(plain) {
		return plain, nil
	}
	return code, nil
}

// atMost is what a program prints, if that is not more.
func atMost(cmd *exec.Cmd, most int64) ([]byte, error) {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(out, most+1))
	if int64(len(all)) > most {
		_ = cmd.Process.Kill()
		err = errors.Join(err, fmt.Errorf("%w than %d MiB", errLarger, most>>20))
	}
	return all, errors.Join(err, cmd.Wait())
}

var (
	linuxVersion = regexp.MustCompile(`Linux version ([0-9][!-~]{0,63}) `)
	release      = regexp.MustCompile(`^[0-9][!-~]{0,63}$`)
)

// releaseOf finds a kernel's release; empty: it is no Linux. A bzImage whose packing is not known says it in its header.
func releaseOf(ctx context.Context, code []byte) string {
	if plain, err := unpackKernel(ctx, code); err == nil && plain != nil {
		code = plain
	}
	if m := linuxVersion.FindSubmatch(code); m != nil {
		return string(m[1])
	}
	const header, at = 0x206, 0x20e // of a bzImage: where its version is, less 0x200
	if len(code) > at+1 && string(code[0x202:header]) == "HdrS" {
		if from := 0x200 + int(code[at]) + int(code[at+1])<<8; from < len(code) {
			if word, _, _ := bytes.Cut(code[from:min(len(code), from+65)], []byte(" ")); release.Match(word) {
				return string(word)
			}
		}
	}
	return ""
}

// ownKernel writes a user's kernel, the words for its command line, and the modules that withModules found, if any.
func (b *build) ownKernel() (release string, err error) {
	own := b.recipe.Own
	f, err := os.Create(b.path("files", ModulesFile))
	if err != nil {
		return "", err
	}
	err = errors.Join(writeOwnModules(f, own), f.Sync(), f.Close())
	if err != nil {
		return "", err
	}
	if f, err = os.Create(b.path("files", KernelFile)); err != nil {
		return "", err
	}
	_, err = f.Write(own.code)
	return own.Release, errors.Join(err, f.Sync(), f.Close())
}

// withModules is a kernel with the modules of an image that has the same kernel, if one is here.
func (s *Store) withModules(own OwnKernel) (OwnKernel, error) {
	all, err := s.List()
	if err != nil {
		return own, err
	}
	for _, img := range all {
		kernel := filepath.Join(s.Folder(img.Digest), KernelFile)
		if info, err := os.Stat(kernel); err != nil || info.Size() != int64(len(own.code)) || img.OwnKernel {
			continue
		}
		if sum, _, err := hashFile(kernel); err != nil || hex.EncodeToString(sum) != own.Sum {
			continue
		}
		modules := filepath.Join(s.Folder(img.Digest), ModulesFile)
		sum, _, err := hashFile(modules)
		if err == nil {
			own.Modules, own.modules = fleet.Digest(fmt.Sprintf("sha256-%x", sum)), modules
		}
		return own, err
	}
	return own, nil
}

// writeOwnModules writes ModulesFile for a user's own kernel.
func writeOwnModules(to io.Writer, own *OwnKernel) error {
	if own.modules == "" {
		return writeModules(to, nil, own)
	}
	f, err := os.Open(own.modules)
	if err != nil {
		return err
	}
	defer f.Close()
	from, c := cpio.NewReader(f), cpio.NewWriter(to)
	if err := writeWords(c, own.Words); err != nil {
		return err
	}
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return c.Close()
		}
		if err == nil {
			err = c.WriteHeader(h)
		}
		if err == nil {
			_, err = io.Copy(c, from)
		}
		if err != nil {
			return fmt.Errorf("copy the kernel's modules: %w", err)
		}
	}
}

func writeWords(c *cpio.Writer, words string) error {
	err := c.WriteHeader(&cpio.Header{Name: initrd.WordsFile, Mode: cpio.TypeReg | 0o644, Size: int64(len(words)), Links: 1})
	if err == nil {
		_, err = io.WriteString(c, words)
	}
	return err
}

// borrowed is the image of another kernel that is otherwise of the same recipe, and so has the same root.
func (s *Store) borrowed(r Recipe) (fleet.Image, bool) {
	all, err := s.List()
	if err != nil || r.Own == nil || r.Fresh {
		return fleet.Image{}, false
	}
	r.Own = nil
	for _, r.Kernel = range Kernels() {
		for _, img := range all {
			if img.Recipe == r.Digest() && s.Has(img.Digest) {
				return img, true
			}
		}
	}
	return fleet.Image{}, false
}

// runBorrowing is run with the root of another image, whose file it is, too.
func (b *build) runBorrowing(img fleet.Image) (fleet.Image, error) {
	b.progress("taking the root of image "+b.base.Name, 0.5)
	err := os.Link(filepath.Join(b.baseFolder, RootFile), b.path("files", RootFile))
	if err == nil {
		img.Kernel, err = b.ownKernel()
	}
	if err != nil {
		return fleet.Image{}, err
	}
	img.MPI, img.Version = b.base.MPI, b.base.Version
	b.progress("hashing", 0.97)
	img.Digest, img.Bytes, err = digestFolder(b.path("files"))
	return img, err
}
