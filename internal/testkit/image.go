package testkit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	imageStore = "/var/lib/pagurus/images" // the machine's, pagurus's default
	// buildLimit is far above the time to build an image, which downloads a few hundred
	// megabytes.
	buildLimit = 20 * time.Minute
)

// Image gives the folder of a predefined image: root.img, vmlinuz, modules.cpio. It is the
// machine's own, shared by all tests, and is built if missing. scripts/rings builds images
// before any test.
func Image(t testing.TB, name string) string {
	t.Helper()
	folder, err := EnsureImage(name)
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// EnsureImage is Image for use outside a test, as in TestMain.
func EnsureImage(name string) (string, error) {
	if folder, err := findImage(imageStore, name); err == nil {
		return folder, nil
	}
	program, err := binary("pagurus")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
	defer cancel()
	if out, err := exec.CommandContext(ctx, program, "image", "build", name).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building image %s: %w: %s", name, err, out)
	}
	return findImage(imageStore, name)
}

// findImage reads a store of `pagurus image`: names/NAME.json has the digest, blobs/DIGEST
// the files.
func findImage(store, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(store, "names", name+".json"))
	if err != nil {
		return "", err
	}
	var label struct{ Digest string }
	if err := json.Unmarshal(text, &label); err != nil {
		return "", fmt.Errorf("reading the label of image %s: %w", name, err)
	}
	if label.Digest == "" {
		return "", fmt.Errorf("the label of image %s names no digest", name)
	}
	folder := filepath.Join(store, "blobs", label.Digest)
	_, err = os.Stat(filepath.Join(folder, "image.json"))
	return folder, err
}

// binary finds a program that make has built, from any package's folder.
func binary(name string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := here; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			path := filepath.Join(dir, "bin", name)
			if _, err := os.Stat(path); err != nil {
				return "", fmt.Errorf("%w: build first, with make", err)
			}
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside the module's folder", here)
		}
	}
}
