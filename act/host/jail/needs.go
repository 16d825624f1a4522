package jail

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// lookLimit is for a loader that lists libraries from a slow disk.
const lookLimit = 30 * time.Second

// Libraries are the files that a program is loaded from: itself, its libraries and
// the loader, at the paths where the loader finds them; also those of libraries that it loads later.
func Libraries(ctx context.Context, program string, later ...string) ([]File, error) {
	loaded, err := hasLoader(program)
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	if !loaded { // it would start, and not list them
		return []File{{Path: program, Runs: true}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	// The loader lists them and does not start the program; this is what ldd does.
	cmd.Env = []string{"LD_TRACE_LOADED_OBJECTS=1", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LD_PRELOAD=" + strings.Join(later, ":")}
	var said bytes.Buffer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w: %s", program, err, strings.TrimSpace(said.String()))
	}
	found, err := listed(string(text))
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	out := []File{{Path: program, Runs: true}}
	for _, path := range found {
		out = append(out, File{Path: path, Runs: true})
	}
	// Where the loader looks for those that are not in its usual folders.
	return append(out, Existing("/etc/ld.so.cache")...), nil
}

// hasLoader reports whether a program is linked dynamically. A script is an error.
func hasLoader(program string) (bool, error) {
	f, err := elf.Open(program)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

// listed reads the paths from the loader's list, whose lines are "name => path (address)", or "path
// (address)" of the loader. The kernel's own library has no path.
func listed(text string) (paths []string, err error) {
	for line := range strings.Lines(text) {
		name, path, found := strings.Cut(strings.TrimSpace(line), " => ")
		if !found {
			path = name
		}
		path, _, _ = strings.Cut(path, " (")
		switch {
		case path == "not found":
			return nil, fmt.Errorf("it lacks %s", name)
		case filepath.IsAbs(path):
			paths = append(paths, filepath.Clean(path))
		}
	}
	if len(paths) == 0 {
		return nil, errors.New("the loader names none")
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// Existing are those of the files and folders that exist, to be read.
func Existing(paths ...string) (out []File) {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			out = append(out, File{Path: filepath.Clean(path)})
		}
	}
	return out
}
