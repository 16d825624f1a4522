package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

// A build's root is on an overlay without syncing. Afterwards the changes are in the
// folder, and no overlay is left.
func TestBuildDoesNotWaitForTheDisk(t *testing.T) {
	testkit.Root(t, "unshare", "mount")
	testkit.Leftovers(t)
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := contained(t.Context(), "sh", "-c", unsynced, "sh", root, filepath.Join(dir, "empty"), filepath.Join(dir, "layer"),
		"sh", "-c", `mkdir "$1/etc" && echo here >"$1/etc/file" && ln "$1/etc/file" "$1/link" && mv "$1/etc" "$1/other" && grep " $1 " /proc/self/mounts`, "sh", root)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "volatile") {
		t.Errorf("%v: %s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(root, "other", "file")); err != nil || string(text) != "here\n" {
		t.Errorf("%q, %v", text, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), root) {
		t.Errorf("a layer is left, or %v", err)
	}
}

// Java's packages name manuals that are not unpacked, and run Java at installation, which
// needs /proc.
func TestLongJavaIsInstalled(t *testing.T) {
	ctx := contract(t)
	s := openStore(t)
	before := traces(t, s)
	img, err := s.Build(ctx, Recipe{Name: "java", Suite: DefaultSuite, Packages: []string{"default-jre-headless"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := s.ShellCommand(ctx, img.Name, Session{Dir: t.TempDir(), Args: []string{"java", "-version"}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "OpenJDK") {
		t.Errorf("%v: %s", err, out)
	}
	if err := s.Remove("java", unused); err != nil {
		t.Error(err)
	}
	same(t, s, before)
}

// Causes of a late failure are reported before large downloads.
func TestMissingHeadersAreToldFirst(t *testing.T) {
	ctx := contract(t)
	s := openStore(t)
	before := traces(t, s)
	for mpi, headers := range map[string]string{"openmpi-bin": "libopenmpi-dev", "mpich": "libmpich-dev"} {
		var steps []string
		_, err := s.Build(ctx, Recipe{Name: "bare", Suite: DefaultSuite, Packages: []string{mpi, "gcc", "libc6-dev"}},
			func(step string, _ float64) { steps = append(steps, step) })
		if err == nil || !strings.Contains(err.Error(), "add "+headers) {
			t.Errorf("%s: %v", mpi, err)
		}
		if said := strings.Join(steps, ", "); strings.Contains(said, "installing") {
			t.Errorf("%s: before that came %s", mpi, said)
		}
	}
	same(t, s, before)
}
