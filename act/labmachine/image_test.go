package labmachine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The name of an image follows from what is in it, not from the order in which it is said.
func TestNames(t *testing.T) {
	r := Recipe{Suite: "trixie", Packages: []string{"runc", "kmod"}}
	same, more, other := r, r, r
	same.Packages = []string{"kmod", "runc", "kmod"}
	more.Packages = append([]string{"tar"}, r.Packages...)
	other.Suite = "bookworm"
	if r.name() != same.name() {
		t.Errorf("%s and %s are of the same packages", r.name(), same.name())
	}
	if r.name() == more.name() || r.digest() == other.digest() {
		t.Error("other packages or another suite have the same name")
	}
	if !strings.HasPrefix(r.name(), "trixie-") {
		t.Errorf("it is called %s", r.name())
	}
}

func TestAnImageThatIsThereIsNotBuilt(t *testing.T) {
	r, folder := Recipe{Suite: "trixie"}, t.TempDir()
	if _, built := r.Find(folder); built {
		t.Fatal("it is there before it is built")
	}
	want := filepath.Join(folder, r.name())
	if err := os.Mkdir(want, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := r.Build(t.Context(), folder, nil)
	if err != nil || got.Folder != want {
		t.Errorf("got %v, %v", got, err)
	}
}

// A program that is told to end tidies up first, and is heard.
func TestACancelledProgramTidiesUp(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	dir := t.TempDir()
	began := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, func(line string) {
			select {
			case began <- line:
			default:
			}
		}, "sh", "-c", `trap 'rm "$1/file"; echo tidied; exit 1' TERM; touch "$1/file"; echo begun; while :; do sleep 0.1; done`, "sh", dir)
	}()
	select {
	case line := <-began:
		if line != "begun" {
			t.Errorf("it said %q", line)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it does not begin")
	}
	stop()
	err := <-ended
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "tidied") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err == nil {
		t.Error("it did not tidy up")
	}
}

func TestProgress(t *testing.T) {
	var said []string
	last := -1.0
	line := progress(func(step string, part float64) {
		said = append(said, step)
		if part < last || part > disk {
			t.Errorf("%s is at %g after %g", step, part, last)
		}
		last = part
	})
	for _, l := range []string{"I: running apt-get update...", "W: a warning", "I: running --essential-hook in shell: sh", "I: extracting archives..."} {
		line(l)
	}
	if len(said) != 2 || said[1] != "extracting archives..." {
		t.Errorf("it said %q", said)
	}
}

// What furnishes a tree replaces what is there, and removes what must not be.
func TestFurnish(t *testing.T) {
	tree := t.TempDir()
	for _, path := range []string{"etc/hostname", "etc/machine-id"} {
		if err := os.MkdirAll(filepath.Join(tree, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, path), []byte("the builder's"), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := furnish(tree, "ssh-ed25519 KEY"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(tree, "etc/hostname")); err == nil {
		t.Error("it has the builder's name")
	}
	if text, err := os.ReadFile(filepath.Join(tree, "etc/machine-id")); err != nil || len(text) > 0 {
		t.Errorf("its identity is %q, %v", text, err)
	}
	if st, err := os.Stat(filepath.Join(tree, "root/.ssh/authorized_keys")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", st, err)
	}
	if st, err := os.Stat(filepath.Join(tree, "usr/local/sbin/lab-network")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("the network's script: %v, %v", st, err)
	}
	if to, err := os.Readlink(filepath.Join(tree, "etc/systemd/system/fstrim.timer")); err != nil || to != "/dev/null" {
		t.Errorf("a timer leads to %q, %v", to, err)
	}
}
