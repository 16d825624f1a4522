package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A directory is known by its file system and its place on that, wherever it is mounted.
func TestSourcesOfDirectories(t *testing.T) {
	const table = `36 25 0:50 / /home rw,relatime shared:1 - nfs4 server:/export/home rw,vers=4.2,addr=192.0.2.1
37 25 0:50 /ada /work\040dir rw - nfs4 server:/export/home rw,addr=192.0.2.1
38 25 0:51 / /local rw - nfs4 localhost:/x rw,addr=127.0.0.1
39 25 0:52 / /auto rw - autofs auto.home rw,fd=7
40 25 8:1 / / rw - ext4 /dev/sda1 rw
41 25 8:1 /srv/data /data rw - ext4 /dev/sda1 rw
42 25 0:53 / /scratch rw - lustre 192.0.2.9@tcp:/scratch rw
43 25 0:54 / /gluster rw - fuse.glusterfs server:/vol rw
44 25 0:55 / /bee rw - beegfs beegfs_nodev rw
45 25 0:56 / /whole rw - nfs server:/ rw,addr=192.0.2.1
`
	for dir, want := range map[string]struct {
		mount  uint64
		fsid   uint64
		source string
	}{
		"/home/ada":   {36, 7, "nfs server:/export/home/ada"},
		"/work dir":   {37, 7, "nfs server:/export/home/ada"},
		"/home":       {36, 7, "nfs server:/export/home"},
		"/local/x":    {38, 7, ""},
		"/auto":       {39, 0, ""},
		"/srv/data/x": {40, 7, "kernel BOOT 8:1:/srv/data/x"},
		"/data/x":     {41, 7, "kernel BOOT 8:1:/srv/data/x"},
		"/scratch/a":  {42, 0xabc, "lustre 0000000000000abc:/a"},
		"/gluster/a":  {43, 0, "fuse.glusterfs server:/vol:/a"},
		"/bee/a":      {44, 0, ""},
		"/whole":      {45, 0, "nfs server:"},
		"/whole/a":    {45, 0, "nfs server:/a"},
		"/elsewhere":  {36, 0, ""},
	} {
		f, ok, err := mountOf(strings.NewReader(table), want.mount)
		f.fsid = want.fsid
		if got := f.name(dir, "BOOT"); !ok || err != nil || got != want.source {
			t.Errorf("%s: %q, want %q: %v", dir, got, want.source, err)
		}
	}
	if _, ok, err := mountOf(strings.NewReader(table), 1); ok || err != nil {
		t.Error("a mount that is not there was found")
	}
}

// This machine's own directories have sources, and a link is no other directory.
func TestSourceHere(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	source, kind, err := Source(dir)
	if err != nil || kind == "" || !strings.HasPrefix(source, "kernel ") || !strings.HasSuffix(source, filepath.Base(dir)) {
		t.Errorf("%q, %q, %v", source, kind, err)
	}
	other, _, err := Source(filepath.Dir(dir))
	if err != nil || other == source || !strings.HasPrefix(source, other+"/") {
		t.Errorf("above it: %q, %v", other, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{file, filepath.Join(dir, "none")} {
		if source, _, err := Source(bad); err == nil {
			t.Errorf("%s is %q", bad, source)
		}
	}
}

// What is said of the NFS client is what the kernel can do.
func TestNFSClient(t *testing.T) {
	text, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	why := NoNFSClient()
	if again, _ := os.ReadFile("/proc/filesystems"); (why == "") != strings.Contains(string(again), "\tnfs4\n") {
		t.Errorf("%q, and the kernel has\n%s", why, text)
	}
	if why != "" && !strings.Contains(why, "no NFS client") {
		t.Errorf("said is %q", why)
	}
}
