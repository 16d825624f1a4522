package image

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestAFullDiskNamesTheFlagThatHelps(t *testing.T) {
	err := (&Store{dir: t.TempDir()}).explain(t.Context(), Recipe{Name: "x"}, syscall.ENOSPC)
	if err == nil || !strings.Contains(err.Error(), "is full") || !strings.Contains(err.Error(), "--images") {
		t.Error(err)
	}
}

func TestRecipesAreTheSameByContent(t *testing.T) {
	a := Recipe{Name: "a", Suite: "trixie", Packages: []string{"mpich", "gcc"}}
	same := Recipe{Name: "b", Suite: "trixie", Packages: []string{"gcc", "mpich", "gcc"}, Exclude: []string{notForGuests[0]}, Kernel: DefaultKernel, Fresh: true}
	if a.Digest() != same.Digest() {
		t.Error("order, doubles or the name change the recipe")
	}
	for _, other := range []Recipe{
		{Suite: "bookworm", Packages: a.Packages},
		{Suite: "trixie", Packages: []string{"mpich"}},
		{Suite: "trixie", Packages: a.Packages, Exclude: []string{"/usr/share/x/*"}},
		{Suite: "trixie", Packages: a.Packages, Kernel: "generic"},
	} {
		if a.Digest() == other.Digest() {
			t.Errorf("%+v is the same recipe", other)
		}
	}
	if err := checkDigest(a.Digest()); err != nil {
		t.Error(err)
	}
}

func TestRecipesForNames(t *testing.T) {
	for _, name := range Predefined() {
		r, err := RecipeFor(name, "", "", nil)
		if err != nil || r.Name != name || len(r.Packages) == 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	r, err := RecipeFor("openmpi", "bookworm", "generic", nil)
	if err != nil || r.Suite != "bookworm" || kernels[r.kernel()] != "linux-image-amd64" {
		t.Errorf("another suite and kernel: %+v, %v", r, err)
	}
	r, err = RecipeFor("mine", "", "", []string{"clang"})
	if err != nil || r.Suite != DefaultSuite || len(r.Exclude) != 0 {
		t.Errorf("own packages: %+v, %v", r, err)
	}
	for _, c := range []struct {
		name, suite, want string
		packages          []string
	}{
		{"mine", "", "there is no recipe", nil},
		{"../x", "", "not a name for an image", []string{"gcc"}},
		{"mine", "-o", "not a Debian suite", []string{"gcc"}},
		{"mine", "", "not a name of a Debian package", []string{"gcc", "--help"}},
		{"mine", "", "not a name of a Debian package", []string{"gcc,make"}},
		{"mine", "", "not a name of a Debian package", []string{""}},
	} {
		if _, err := RecipeFor(c.name, c.suite, "", c.packages); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A kernel that there is not is refused by a sentence with those that there are.
func TestKernels(t *testing.T) {
	for _, word := range append(Kernels(), "") {
		if _, err := RecipeFor("openmpi", "", word, nil); err != nil {
			t.Errorf("%q: %v", word, err)
		}
	}
	_, err := RecipeFor("openmpi", "", "linux-image-rt-amd64", nil)
	if err == nil || err.Error() != `"linux-image-rt-amd64" is not a kernel that images may have: use cloud, generic, or a file` {
		t.Error(err)
	}
}

func TestProgressFollowsTheBuild(t *testing.T) {
	var steps []string
	last := -1.0
	l := newBootstrapLog(monotonic(func(step string, f float64) {
		if f < last || f > 1 {
			t.Errorf("%q at %v after %v", step, f, last)
		}
		last = f
		steps = append(steps, step)
	}))
	long := "/usr/bin/dpkg " + strings.Repeat("x", 1<<20)
	said := `I: running apt-get update...
I: downloading packages with apt...
0 upgraded, 59 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://deb.debian.org/debian trixie/main amd64 libc6 amd64 2.41-12 [2847 kB]
I: extracting archives...
I: installing essential packages...
` + long + `
I: installing remaining packages inside the chroot...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://deb.debian.org/debian trixie/main amd64 gcc amd64 14 [2 kB]
Get:2 http://deb.debian.org/debian trixie/main amd64 make amd64 4 [2 kB]
Unpacking gcc:amd64 (14) ...
Unpacking make (4) ...
Setting up gcc:amd64 (14) ...
Setting up make (4) ...
I: running --customize-hook in shell
no newline at the end`
	if err := l.read(strings.NewReader(said)); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(steps, "\n")
	for _, want := range []string{"downloading the base system", "downloading 2 packages", "unpacking gcc", "setting up make", "downloading the kernel"} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing said of %q in:\n%s", want, all)
		}
	}
	for _, line := range l.last {
		if len(line) > longestLine {
			t.Errorf("a line of %d bytes was kept", len(line))
		}
	}
}

func TestCausesAreSentences(t *testing.T) {
	r := Recipe{Name: "x", Suite: "trixie"}
	for said, want := range map[string]string{
		"E: Unable to locate package nosuch\nE: mmdebstrap failed to run":                      `no package "nosuch" in Debian trixie`,
		"E: Package 'old' has no installation candidate":                                       `no package "old"`,
		"E: The repository 'http://h/debian trixxie Release' does not have a Release file.":    `no suite "trixie"`,
		"W: Failed to fetch http://h/x  Could not resolve 'h'\nE: apt-get update failed":       "at h cannot be reached",
		"tar: ./usr/lib/x: Cannot write: No space left on device\nE: mmdebstrap failed to run": "no space left on device",
		"E: mmdebstrap failed to run\nE: dpkg: something else":                                 "mmdebstrap: dpkg: something else",
		"E: without headers openmpi-bin libopenmpi-dev\nE: mmdebstrap failed to run":           "add libopenmpi-dev to --packages",
		"Setting up fine (1) ...\nSetting up bad:amd64 (1) ...\nupdate-alternatives: error: no folder\n" +
			"dpkg: error processing package bad:amd64 (--configure):\n installed bad:amd64 package post-installation script subprocess returned error exit status 2\n" +
			"dpkg: error processing package needs-bad (--configure):\n dependency problems - leaving unconfigured\n" +
			"E: Sub-process env returned an error code (1)": "package bad cannot be installed; the last output: update-alternatives: error: no folder | installed bad:amd64 package post-installation script subprocess returned error exit status 2",
		"something at the end": "mmdebstrap: exit status 1: something at the end",
		"":                     "mmdebstrap: exit status 1",
	} {
		l := newBootstrapLog(func(string, float64) {})
		if err := l.read(strings.NewReader(said)); err != nil {
			t.Fatal(err)
		}
		if err := l.cause(r, errors.New("exit status 1")); !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %q, want %q", said, err, want)
		}
	}
}

func TestMirrorsOfThisMachine(t *testing.T) {
	for _, c := range []struct{ targets, main, security string }{
		{"", debianMirror, securityMirror},
		{"http://near/debian/ bookworm main\nhttp://near/debian/ bookworm-updates main\nhttp://near/debian-security/ bookworm-security main\n",
			"http://near/debian", "http://near/debian-security"},
		{"https://deb.nodesource.com/node_20.x/ nodistro main\nhttps://download.docker.com/linux/ubuntu bookworm stable\nhttp://a/debian bookworm contrib\n",
			debianMirror, securityMirror},
	} {
		a := archive{main: debianMirror, security: securityMirror}
		a.choose(c.targets, "bookworm")
		if a.main != c.main || a.security != c.security {
			t.Errorf("%q: %+v", c.targets, a)
		}
	}
	if got := len(archive{}.sources("sid")); got != 1 {
		t.Errorf("sid has %d sources", got)
	}
}

func TestShellsStayOutOfTheSystem(t *testing.T) {
	for _, dir := range []string{"/", "/usr", "/etc", "/usr/bin", "relative", "/nosuch/folder"} {
		if got, err := sessionDir(dir); err == nil {
			t.Errorf("%s is taken as %s", dir, got)
		}
	}
	dir := t.TempDir()
	if got, err := sessionDir(dir); err != nil || got == "" {
		t.Errorf("%s: %v", dir, err)
	}
}

// A compiler's reason is some lines before its last.
func TestACompilersReasonIsKept(t *testing.T) {
	said := "trace.c:12:10: fatal error: mpi.h: No such file or directory\n   12 | #include <mpi.h>\ncompilation terminated.\n"
	if got := lastLines([]byte(said)); !strings.Contains(got, "mpi.h: No such file") || !strings.HasSuffix(got, "compilation terminated.") {
		t.Errorf("%q", got)
	}
	if got := lastLines([]byte(strings.Repeat("line\n", 100))); strings.Count(got, "line") != mostWords {
		t.Errorf("%q", got)
	}
}
