// Package criu runs CRIU, which writes the processes of a container to files and restores
// them from these files, on this host or another, with their memory, open files and TCP
// connections. The package finds a CRIU that works with this kernel and tries it. It
// reports in plain words what prevents a container from being moved. It repairs what a
// killed CRIU left behind.
//
// The package must not know what a guest, an image or a migration is. It makes no
// container: namespaces, mounts, control groups and the network belong to its caller.
// CRIU runs beside the caller, in a session of its own. If the caller dies, a dump fails
// at its next step, because the notification gets no answer, and undoes what it did.
//
// The tests run against the kernel and the CRIU of this machine.
package criu

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Criu is an installed CRIU that works with this kernel.
type Criu struct {
	Path    string // of the program
	Version string // for example "4.2.1"
}

// prefix is the folder into which Installer puts CRIU.
const prefix = "/opt/pagurus-criu"

// cure is what a person does if there is no CRIU.
const cure = "`sudo pagurus doctor --fix` brings one"

// programFolders is the PATH in which CRIU finds the programs it calls, whatever its
// caller's PATH is.
const programFolders = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

//go:embed install.sh
var installer string

// Installer returns a bash script that installs CRIU on this machine, as root. It may be
// run at any time and does only what is missing.
func Installer() string { return installer }

// versionLimit limits how long a program may take to print its version.
const versionLimit = 20 * time.Second

// Find looks for the CRIU that Installer installs, then for the system's own. It skips a
// CRIU that is known not to work with the running kernel.
func Find(ctx context.Context) (Criu, error) {
	if _, err := exec.LookPath("tar"); err != nil {
		return Criu{}, errors.New("tar is missing, which CRIU needs for files in memory: apt-get install tar")
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Criu{}, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	kernel := unix.ByteSliceToString(name.Release[:])
	var errs []error
	for _, name := range []string{filepath.Join(prefix, "bin/criu"), "criu", "/usr/sbin/criu"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		version, err := versionOf(ctx, path)
		if err == nil {
			err = suits(version, kernel)
		}
		if err == nil {
			return Criu{path, version}, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if len(errs) == 0 {
		return Criu{}, errors.New("CRIU is missing, which moves containers: " + cure)
	}
	return Criu{}, errors.Join(errs...)
}

// versionOf asks a CRIU for its version.
func versionOf(ctx context.Context, path string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, versionLimit)
	defer stop()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask for its version: %w; %s", err, cure)
	}
	for line := range bytes.Lines(out) {
		if v, ok := bytes.CutPrefix(line, []byte("Version:")); ok {
			return string(bytes.TrimSpace(v)), nil
		}
	}
	return "", errors.New("it does not say its version; " + cure)
}

// suits returns why a CRIU version does not work with a kernel, or nil if it does.
func suits(version, kernel string) error {
	switch {
	case number(version) == 0:
		return fmt.Errorf("%q is not a version of CRIU; %s", version, cure)
	case number(version) < number("3.19"):
		// checkpoint-restore/criu#2113
		return fmt.Errorf("version %s is too old: what it restored ran at half its speed; %s that does", version, cure)
	case number(version) < number("4.2") && number(kernel) >= number("6.16"):
		return fmt.Errorf("version %s is too old for Linux %s: it cannot store TCP connections; %s that can", version, kernel, cure)
	}
	return nil
}

// number makes versions comparable: "6.18.44-cloud" becomes 6018. The third number is
// ignored, because it decides nothing here. number returns 0 if version is not a version.
func number(version string) int {
	major, rest, _ := strings.Cut(version, ".")
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	a, err1 := strconv.ParseUint(major, 10, 16)
	b, err2 := strconv.ParseUint(rest[:digits], 10, 16)
	if err1 != nil || err2 != nil || b > 999 {
		return 0
	}
	return int(a)*1000 + int(b)
}

// ignoreAbsent turns the error about a missing file into nil.
func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
