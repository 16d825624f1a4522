package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container/shim"
	"pagurus/internal/testkit"
)

func TestMain(m *testing.M) {
	shim.Become(Shims)
	os.Exit(m.Run())
}

func state(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:min(1, len(rest))]
}

// TestAnchor: an anchor holds a network of its own. Until Stay it ends with its starter,
// afterwards it does not.
func TestAnchor(t *testing.T) {
	testkit.Root(t)
	for _, stays := range []bool{true, false} {
		p, err := NewAnchor()
		if err != nil {
			t.Fatal(err)
		}
		ours, _ := os.Readlink("/proc/self/ns/net")
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID))
		if err != nil || its == ours {
			t.Errorf("its network is %s, ours %s: %v", its, ours, err)
		}
		if stays {
			if err := p.Stay(); err != nil {
				t.Fatal(err)
			}
		}
		p.orders.Close() // as when this process dies
		p.answer.Close()
		if stays {
			time.Sleep(200 * time.Millisecond)
			if s := state(p.PID); s != "S" && s != "R" {
				t.Errorf("it was to stay, and is %q", s)
			}
		} else {
			testkit.Until(t, 10*time.Second, "it ends", func() bool { return state(p.PID) == "Z" })
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	}
}

// TestTables: a container's network has tables of its own, if the kernel can do that, and this
// process stays in its network.
func TestTables(t *testing.T) {
	testkit.Root(t)
	before, _ := os.Readlink("/proc/self/ns/net")
	p, err := NewAnchor()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	for path, asked := range map[string]string{"tcp_ehash_entries": "8192", "udp_hash_entries": "512"} {
		all, err := os.ReadFile("/proc/sys/net/ipv4/" + path)
		if err != nil {
			t.Logf("this kernel has no %s: %v", path, err)
			continue
		}
		its, err := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", p.PID), "cat", "/proc/sys/net/ipv4/"+path).Output()
		if got := strings.TrimSpace(string(its)); err != nil || got != asked {
			t.Errorf("%s is %s, this machine's %s: %v", path, got, strings.TrimSpace(string(all)), err)
		}
	}
	if after, _ := os.Readlink("/proc/self/ns/net"); after != before {
		t.Errorf("this process is in %s, was in %s", after, before)
	}
}

// mounted are the machine's mounts, but for those of tests of other packages that run now:
// named networks, and what is in other temporary folders.
func mounted(t *testing.T, root string) string {
	t.Helper()
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(all)) {
		other := strings.Contains(line, " - nsfs ") || strings.Contains(line, os.TempDir()+"/")
		if strings.Contains(line, root) || !other {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestCellEnds: a process that gets no order ends with its starter. A process that cannot become
// the program reports why, and leaves the host's mounts unchanged.
func TestCellEnds(t *testing.T) {
	testkit.Root(t)
	p, err := NewProcess()
	if err != nil {
		t.Fatal(err)
	}
	p.orders.Close()
	testkit.Until(t, 10*time.Second, "it ends", func() bool { return state(p.PID) == "Z" })
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	root := t.TempDir()
	before := mounted(t, root)
	if err := unix.Mount("test", root, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		unix.Unmount(root, unix.MNT_DETACH)
		if after := mounted(t, root); after != before {
			t.Errorf("mounts were\n%s\nand are\n%s", before, after)
		}
	}()
	if err := os.MkdirAll(filepath.Join(root, "dev/empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(root, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]Cell{
		"/nowhere":    {Root: "/nowhere"},
		"/none/there": {Root: root, Mounts: []Mount{{From: "/none/there", At: "/x"}}},
		"/console":    {Root: root, Hostname: "x", Console: "/none/console"},
		"run /none":   {Root: root, Hostname: "x", Console: "/console", Program: "/none"},
	} {
		p, err := NewProcess()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	}
}
