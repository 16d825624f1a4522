package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kernel takes the kernel and the modules out of the kernel's package and says
// which release it is.
func (b *build) kernel(ctx context.Context) (release string, err error) {
	debs, err := filepath.Glob(b.path("kernel", "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", errors.Join(err, fmt.Errorf("expected one package, got %d", len(debs)))
	}
	tree := b.path("kernel", "tree")
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], tree).CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w: %s", filepath.Base(debs[0]), err, lastLine(out))
	}
	found, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", errors.Join(err, fmt.Errorf("%s has %d kernels", filepath.Base(debs[0]), len(found)))
	}
	release = strings.TrimPrefix(filepath.Base(found[0]), "vmlinuz-")
	if err := copyFile(b.path("files", KernelFile), found[0]); err != nil {
		return "", err
	}
	modules, err := openModules(tree, release)
	if err != nil {
		return "", err
	}
	ordered, err := modules.order(required, optional)
	if err != nil {
		return "", err
	}
	f, err := os.Create(b.path("files", ModulesFile))
	if err != nil {
		return "", err
	}
	return release, errors.Join(writeModules(f, ordered), f.Sync(), f.Close())
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// lastLine is what a program said last, for an error.
func lastLine(out []byte) string {
	s := strings.TrimSpace(string(out))
	return s[strings.LastIndexByte(s, '\n')+1:]
}
