package lean

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// fromFiles is this process's resident file pages.
func fromFiles(t *testing.T) (kib int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		// Files in a tmpfs, such as Debian 13's /tmp, count as shared memory.
		for _, of := range []string{"RssFile:", "RssShmem:"} {
			if rest, ok := strings.CutPrefix(line, of); ok {
				part := 0
				if _, err := fmt.Sscan(rest, &part); err != nil {
					t.Fatal(err)
				}
				kib += part
			}
		}
	}
	return kib
}

// touch reads all of this program's code and tables.
func touch(t *testing.T) (bytes int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := byte(0)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if from, to, ok := unwritten(lines.Text(), own); ok {
			for _, b := range unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&from))), to-from) {
				sum += b
			}
			bytes += int(to - from)
		}
	}
	_ = sum
	return bytes
}

// lag is how much the kernel's count may lag, in KiB: each thread adds up what it has before it tells.
const lag = 256

// TestShed: pages of the program's file are released, and the program goes on.
func TestShed(t *testing.T) {
	all := touch(t) >> 10
	before := fromFiles(t)
	if all == 0 || before < all-lag {
		t.Fatalf("of %d KiB of code %d are in memory", all, before)
	}
	if err := Shed(int64(before) << 11); err != nil {
		t.Fatal(err)
	}
	if kept := fromFiles(t); kept < all-lag {
		t.Errorf("it may have more, and of %d KiB it has %d", before, kept)
	}
	if err := Shed(0); err != nil {
		t.Fatal(err)
	}
	after := fromFiles(t)
	t.Logf("%d KiB of %d given back, %d before", before-after, all, before)
	// Code that the test runs is loaded again at once, with its surroundings.
	if before-after < all/8 {
		t.Errorf("of %d KiB in memory %d are left", before, after)
	}
	if again := touch(t) >> 10; again != all {
		t.Errorf("%d KiB of code, %d before", again, all)
	}
}

func TestWhatIsNotWrittenTo(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-00a00000 r-xp 00000000 fe:00 12    /usr/bin/pagurus":           true,
		"00a00000-00b00000 r--p 00600000 fe:00 12    /usr/bin/pagurus":           true,
		"00b00000-00c00000 rw-p 00700000 fe:00 12    /usr/bin/pagurus":           false,
		"00400000-00a00000 r-xp 00000000 fe:00 12    /usr/lib/libc.so.6":         false,
		"00400000-00a00000 r-xp 00000000 fe:00 12    /usr/bin/pagurus (deleted)": false,
		"00400000-00a00000 rw-p 00000000 00:00 0":                                false,
		"x-y r-xp 0 0 0 /usr/bin/pagurus":                                        false,
		"":                                                                       false,
	} {
		if _, _, ok := unwritten(line, "/usr/bin/pagurus"); ok != want {
			t.Errorf("%q: %t", line, ok)
		}
	}
}
