package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// The programs a build needs.
var tools = []string{"mmdebstrap", "mksquashfs", "unshare", "dpkg-deb", "xz", "zstd"}

// buildLimit is the time for building a small image on a busy machine.
const buildLimit = 10 * time.Minute

func contract(t *testing.T) context.Context {
	t.Helper()
	testkit.Root(t, tools...)
	ctx, cancel := context.WithTimeout(t.Context(), buildLimit)
	t.Cleanup(cancel)
	return ctx
}

// small is a real image, but without MPI.
func small(name string) Recipe {
	return Recipe{Name: name, Suite: DefaultSuite, Packages: []string{"make"}}
}

// traces are what a build might leave on the machine.
func traces(t *testing.T, s *Store) []string {
	t.Helper()
	out := tree(t, s)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.dir) {
			out = append(out, "mount "+line)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.Contains(string(b), s.dir) {
			out = append(out, "loop device "+l)
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), s.dir) {
			out = append(out, fmt.Sprintf("process %s %.80q", p, b))
		}
	}
	return out
}

// same reports new traces since before. A killed process or a detached mount may take a
// moment to disappear.
func same(t *testing.T, s *Store, before []string) {
	t.Helper()
	var now []string
	testkit.Until(t, 15*time.Second, "nothing is left behind", func() bool {
		now = traces(t, s)
		if t.Failed() {
			return true
		}
		return slices.Equal(before, now)
	})
}

// One build, then all tests that need an image.
func TestABuiltImage(t *testing.T) {
	ctx := contract(t)
	s := openStore(t)
	other := openStore(t)
	var again fleet.Image
	var elsewhere sync.WaitGroup
	elsewhere.Go(func() { // in parallel: a build uses one CPU
		var err error
		if again, err = other.Build(ctx, small("other"), nil); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(elsewhere.Wait)
	img := twice(ctx, t, s)
	elsewhere.Wait()
	built := traces(t, s)
	t.Run("has its files", func(t *testing.T) {
		var names []string
		for _, f := range built {
			if rest, ok := strings.CutPrefix(f, "/blobs/"+string(img.Digest)+"/"); ok {
				names = append(names, rest)
			}
		}
		if want := []string{LabelFile, keptFile, ModulesFile, RootFile, KernelFile}; !slices.Equal(names, want) {
			t.Errorf("files %v, want %v", names, want)
		}
		if img.MPI != "" || img.Kernel == "" || img.Bytes == 0 || img.Recipe != small("").Digest() {
			t.Errorf("label %+v", img)
		}
	})
	t.Run("is the same when built elsewhere", func(t *testing.T) {
		if again.Digest != img.Digest || again.Bytes != img.Bytes {
			t.Errorf("built %s, then %s", img.Digest, again.Digest)
		}
	})
	t.Run("is cached", func(t *testing.T) {
		said := ""
		again, err := s.Build(ctx, small("alias"), func(step string, _ float64) { said += step })
		if err != nil || again.Digest != img.Digest || again.Name != "alias" || said != "cached" {
			t.Errorf("%+v, %v, %q", again, err, said)
		}
		if err := s.Remove("alias", unused); err != nil {
			t.Error(err)
		}
		same(t, s, built)
	})
	t.Run("runs programs on this machine", func(t *testing.T) { shellContract(t, s, built) })
	t.Run("goes to another store", func(t *testing.T) {
		other := openStore(t)
		other.FetchWith(func(_ context.Context, d fleet.Digest, file string, w io.Writer) error {
			b, err := os.ReadFile(filepath.Join(s.Folder(d), file))
			if err == nil {
				_, err = w.Write(b)
			}
			return err
		})
		if _, err := other.Ensure(ctx, img.Digest); err != nil {
			t.Error(err)
		}
	})
}

// twice builds the same recipe under two names at once: one waits and uses the other's
// image.
func twice(ctx context.Context, t *testing.T, s *Store) fleet.Image {
	t.Helper()
	var wait sync.WaitGroup
	images, waited := make([]fleet.Image, 2), make([]bool, 2)
	for i, name := range []string{"small", "second"} {
		wait.Go(func() {
			check := monotonicIn(t)
			var err error
			images[i], err = s.Build(ctx, small(name), func(step string, f float64) {
				check(step, f)
				waited[i] = waited[i] || strings.HasPrefix(step, "waiting")
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if images[0].Digest != images[1].Digest || waited[0] == waited[1] {
		t.Errorf("built %+v, waited %v", images, waited)
	}
	if list, err := s.List(); err != nil || len(list) != 2 {
		t.Errorf("list %v, %v", list, err)
	}
	if t.Failed() {
		t.FailNow()
	}
	return images[0]
}

// monotonicIn checks a progress.
func monotonicIn(t *testing.T) Progress {
	last := 0.0
	return func(step string, f float64) {
		if f < last || f > 1 || step == "" {
			t.Errorf("step %q at %v after %v", step, f, last)
		}
		last = f
	}
}

func shellContract(t *testing.T, s *Store, before []string) {
	dir := t.TempDir()
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		_ = os.Chmod(d, 0o777) // the test's folders are root's; those above may stay so
	}
	const uid, gid = 12345, 12346
	run := func(args ...string) (string, error) {
		cmd, err := s.ShellCommand(t.Context(), "small", Session{Dir: dir, UID: uid, GID: gid, Groups: []uint32{7}, Args: args})
		if err != nil {
			return "", err
		}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	out, err := run("sh", "-c", "id -u; id -g; id -G; pwd; make --version | head -n 1 | cut -d' ' -f1,2; echo made >made; touch /nothing 2>/dev/null || echo no; test -c /dev/null && test -d /proc/self && echo yes")
	if want := fmt.Sprintf("%d\n%d\n%d 7\n%s\nGNU Make\nno\nyes", uid, gid, gid, dir); err != nil || out != want {
		t.Errorf("inside:\n%s\nwant:\n%s\n%v", out, want, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "made"), &st); err != nil || st.Uid != uid || st.Gid != gid {
		t.Errorf("the file made inside: %+v, %v", st, err)
	}
	code, err := s.Shell(t.Context(), "small", Session{Dir: dir, Args: []string{"sh", "-c", "exit 7"}})
	if code != 7 || err != nil {
		t.Errorf("exit 7 gives %d, %v", code, err)
	}
	if _, err := run("nosuchprogram"); err == nil {
		t.Error("a missing program is not an error")
	}
	if _, err := s.ShellCommand(t.Context(), "nosuch", Session{Dir: dir}); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown image: %v", err)
	}
	same(t, s, before)
}

func TestAFailedBuildLeavesNothing(t *testing.T) {
	ctx := contract(t)
	s := openStore(t)
	before := traces(t, s)
	r := small("x")
	r.Packages = append(r.Packages, "no-such-package")
	_, err := s.Build(ctx, r, nil)
	if err == nil || !strings.Contains(err.Error(), `no package "no-such-package" in Debian`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	same(t, s, before)
	r = small("x")
	r.Suite = "nosuchsuite"
	if _, err = s.Build(ctx, r, nil); err == nil || !strings.Contains(err.Error(), `"nosuchsuite"`) {
		t.Errorf("error %v", err)
	}
	same(t, s, before)
}

func TestAFullDiskIsOneSentence(t *testing.T) {
	ctx := contract(t)
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := traces(t, s)
	_, err = s.Build(ctx, small("x"), nil)
	if err == nil || !strings.Contains(err.Error(), dir+" is full") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	same(t, s, before)
}

// Ctrl-C during fetching and during installation.
func TestAnInterruptedBuildLeavesNothing(t *testing.T) {
	contract(t)
	for _, at := range []float64{0.02, 0.1} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			s := openStore(t)
			before := traces(t, s)
			ctx, cancel := context.WithCancelCause(contract(t))
			stopped := errors.New("stopped by hand")
			_, err := s.Build(ctx, small("x"), func(_ string, f float64) {
				if f >= at {
					cancel(stopped)
				}
			})
			if !errors.Is(err, stopped) {
				t.Errorf("error %v", err)
			}
			same(t, s, before)
		})
	}
}
