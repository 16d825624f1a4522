package freemem

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// TestZero: as much is taken as was asked for, in whole huge pages, and is given back.
func TestZero(t *testing.T) {
	testkit.Leftovers(t)
	for _, c := range []struct {
		bytes, want int64
		end         time.Duration
	}{
		{40 << 20, 40 << 20, time.Minute},
		{3 << 20, 2 << 20, time.Minute},
		{1 << 20, 0, time.Minute},
		{-1, 0, time.Minute},
		{40 << 20, 0, -time.Second},
	} {
		before := resident(t)
		got, release, err := Zero(c.bytes, time.Now().Add(c.end))
		if err != nil || got != c.want {
			t.Errorf("%+v: %d bytes, %v", c, got, err)
		}
		if has := resident(t) - before; has < got-1<<20 || has > got+16<<20 {
			t.Errorf("%+v: %d bytes more are in memory", c, has)
		}
		release()
		if has := resident(t) - before; has > 16<<20 {
			t.Errorf("%+v: %d bytes stay", c, has)
		}
	}
}

// TestMoreThanThereIs: some memory stays free.
func TestMoreThanThereIs(t *testing.T) {
	was := spare
	defer func() { spare = was }()
	left := int64(3 * stepBytes)
	spare = func() (int64, error) { left -= stepBytes; return left, nil }
	got, release, err := Zero(1<<30, time.Now().Add(time.Minute))
	if err != nil || got != 2*stepBytes {
		t.Errorf("%d bytes, %v", got, err)
	}
	release()
}

// TestTakenIsZero: with and without huge pages.
func TestTakenIsZero(t *testing.T) {
	for _, advice := range []int{unix.MADV_HUGEPAGE, unix.MADV_NOHUGEPAGE} {
		area, err := unix.Mmap(-1, 0, 2*stepBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Madvise(area, advice); err != nil {
			t.Log(err) // a kernel without huge pages
		}
		before := resident(t)
		if err := fillPages(area); err != nil {
			t.Fatal(err)
		}
		if has := resident(t) - before; has < int64(len(area))-1<<20 {
			t.Errorf("%d bytes are in memory", has)
		}
		if !bytes.Equal(area, make([]byte, len(area))) {
			t.Error("it is not empty")
		}
		if err := unix.Munmap(area); err != nil {
			t.Error(err)
		}
	}
}

// resident is how much of this process is in memory.
func resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
