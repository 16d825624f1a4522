package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cavaliergopher/cpio"

	"pagurus/act/image"
)

// imageFolder is where images are by default.
const imageFolder = "/var/lib/pagurus/images"

// folderOf gives the folder of an image.
func folderOf(name string) (string, error) {
	store, err := image.Open(imageFolder)
	if err != nil {
		return "", err
	}
	img, err := store.Find(name)
	return store.Folder(img.Digest), err
}

// firstProcess is a user process that does nothing but say that it is there.
const firstProcess = `#include <unistd.h>
int main(void) {
	static const char word[] = "first user process\n";
	write(1, word, sizeof word - 1);
	for (;;) pause();
}
`

// bareGuest gives the folder of the image that jobs run and an initrd with the
// same modules and, in place of the guest agent, the first process.
func (b *experiments) bareGuest() (folder, initrd string, err error) {
	if folder, err = folderOf(b.Own.Image("openmpi")); err != nil {
		return "", "", err
	}
	initrd = filepath.Join(b.Dir, "bare.cpio")
	if _, err := os.Stat(initrd); err == nil {
		return folder, initrd, nil
	}
	modules, err := os.ReadFile(filepath.Join(folder, "modules.cpio"))
	if err != nil {
		return "", "", err
	}
	program, err := os.ReadFile(filepath.Join(b.Dir, "first"))
	if err != nil {
		return "", "", err
	}
	var own bytes.Buffer
	w := cpio.NewWriter(&own)
	entries := []struct {
		name string
		mode cpio.FileMode
		body []byte
	}{{"dev", cpio.TypeDir | 0o755, nil}, {"init", cpio.TypeReg | 0o755, program}}
	for _, e := range entries {
		if err := w.WriteHeader(&cpio.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.body))}); err != nil {
			return "", "", fmt.Errorf("writing the initrd: %w", err)
		}
		if _, err := w.Write(e.body); err != nil {
			return "", "", fmt.Errorf("writing the initrd: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return "", "", fmt.Errorf("writing the initrd: %w", err)
	}
	return folder, initrd, os.WriteFile(initrd, append(modules, own.Bytes()...), 0o644)
}
