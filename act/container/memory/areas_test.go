package memory

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAreasOfAListReadOverTime: where mappings are joined while the list of them is read, it has
// a part twice. Areas do not overlap, and the next pass takes nothing that exists for gone.
func TestAreasOfAListReadOverTime(t *testing.T) {
	dir := t.TempDir()
	list := "1000-2000 rw-p 00000000 00:00 0 \n" +
		"2000-3000 ---p 00000000 00:00 0 \n" +
		"1000-4000 rw-p 00000000 00:00 0 \n" +
		"4000-5000 r--s 00000000 00:01 7 /shared\n" +
		"4000-6000 rw-p 00000000 00:00 0 \n" +
		"5000-6000 rw-p 00000000 00:00 0 \n" +
		"6000-7000 rw-p 00000000 00:00 0 \n"
	if err := os.WriteFile(filepath.Join(dir, "maps"), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := folder{fd}
	defer f.close()
	rows, err := f.areas()
	want := [][]area{{{0x1000, 0x2000}, {0x2000, 0x3000}, {0x3000, 0x4000}}, {{0x4000, 0x6000}, {0x6000, 0x7000}}}
	if err != nil || !reflect.DeepEqual(rows, want) {
		t.Fatalf("%x %v, not %x", rows, err, want)
	}
	next := []area{{0x1000, 0x2000}, {0x2000, 0x3000}, {0x3000, 0x4000}, {0x4000, 0x7000}}
	if gone := without(append(rows[0], rows[1]...), next); len(gone) > 0 {
		t.Errorf("%x is taken for gone", gone)
	}
}
