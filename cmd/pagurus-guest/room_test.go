package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// TestKeepRoom: a guest takes its memory back when little of what it has is free, and not before. The kernel's files are made up; on a Xen host
// the ring of machines tries it.
func TestKeepRoom(t *testing.T) {
	root := t.TempDir()
	target, meminfo := filepath.Join(root, xenMemory), filepath.Join(root, "proc/meminfo")
	write := func(path string, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		next := path + ".next"
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	free := func(kib int64) {
		write(meminfo, "MemTotal: 262144 kB\nMemFree:  1 kB\nMemAvailable:   "+strconv.FormatInt(kib, 10)+" kB\n")
	}
	write(filepath.Join(root, overcommit), "0")
	keepRoom(root) // of no guest of Xen: it returns
	if text, _ := os.ReadFile(filepath.Join(root, overcommit)); string(text) != "0" {
		t.Errorf("in no guest of Xen memory is refused by rule %q", text)
	}
	const all = 256 << 10
	write(target, strconv.Itoa(all)+"\n")
	free(all / leastRoom)
	go keepRoom(root) // it goes on until the test's end
	time.Sleep(100 * time.Millisecond)
	write(target, strconv.Itoa(all/2)+"\n")
	time.Sleep(lookForTaken + 10*lookForRoom)
	if text, _ := os.ReadFile(filepath.Join(root, overcommit)); string(text) != "1" {
		t.Errorf("memory is refused by rule %q", text)
	}
	if has, err := number(target); err != nil || has != all/2 {
		t.Errorf("with enough room it aims at %d KiB: %v", has, err)
	}
	free(all/leastRoom - 1)
	testkit.Until(t, 10*time.Second, "it takes its memory back", func() bool {
		has, err := number(target)
		return err == nil && has == all
	})
}
