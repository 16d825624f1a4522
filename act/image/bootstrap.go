package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killWait is the time for a terminated program to clean up.
const killWait = 10 * time.Second

// contained prepares a program in process and mount namespaces of its own: when it or
// this process ends, all its children end and all its mounts disappear.
func contained(ctx context.Context, args ...string) *exec.Cmd {
	wrap := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--"}
	cmd := exec.CommandContext(ctx, "unshare", append(wrap, args...)...)
	// A group of its own, so that Ctrl-C at the terminal reaches only this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = killWait
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC",
		"DEBIAN_FRONTEND=noninteractive", "DEBCONF_NONINTERACTIVE_SEEN=true", "SOURCE_DATE_EPOCH=" + strconv.Itoa(epoch),
	}
	for _, v := range []string{"http_proxy", "https_proxy", "no_proxy"} {
		if p := os.Getenv(v); p != "" {
			cmd.Env = append(cmd.Env, v+"="+p)
		}
	}
	return cmd
}

// findPackages is run by mmdebstrap first. It updates apt's lists, which mmdebstrap then
// does not repeat, and looks up the packages. Otherwise a misspelt name would be reported
// only after the base system was installed. It also checks for the headers that Pagurus's
// own libraries need. The messages are in two pieces, because mmdebstrap prints all of a
// failing hook.
const findPackages = `set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
apt-get -q -o APT::Sandbox::User=root --error-on=any update
for name in $PAGURUS_PACKAGES; do
	apt-cache showpkg "$name" 2>/dev/null | grep -q '^Package: ' || { echo "E: Unable to locate package" "$name" >&2; exit 1; }
done
all=$(apt-get -q -s -o APT::Sandbox::User=root -o APT::Install-Recommends=false install $PAGURUS_PACKAGES 2>/dev/null) || all=
has() { printf '%s\n' "$all" | grep -q "^Inst $1 "; }
for mpi in openmpi-bin:libopenmpi-dev mpich:libmpich-dev; do
	if has gcc && has "${mpi%:*}" && ! has "${mpi#*:}"; then
		echo "E: without headers" "${mpi%:*}" "${mpi#*:}" >&2
		exit 1
	fi
done
# Packages name their manuals as alternatives and fail where those have no folder.
for section in 1 2 3 4 5 6 7 8 9; do mkdir -p "$1/usr/share/man/man$section"; done
`

// fetchKernel is run by mmdebstrap when the root is complete and apt still has its lists.
// The kernel's package is not installed: it would add an initramfs builder, and hundreds
// of modules to the root, and guests need a few of them.
const fetchKernel = `set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
name=$(apt-cache depends "$PAGURUS_KERNEL_PACKAGE" | sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
[ -n "$name" ] || { echo "E: Unable to locate package" "$PAGURUS_KERNEL_PACKAGE" >&2; exit 1; }
cd "$PAGURUS_KERNEL"
apt-get -q -o APT::Sandbox::User=root download "$name"
`

// unsynced runs a command with a folder on an overlay that ignores syncing. dpkg syncs
// 6,300 times for an image, whatever its options, which took 12 s of 59; the result is
// synced once, at the end. Afterwards the changes are in the folder. Without such
// overlays in the kernel it works directly in the folder.
const unsynced = `mkdir -p "$2" "$3" || exit
mount -t overlay -o "volatile,lowerdir=$2,upperdir=$1,workdir=$3" layer "$1" 2>/dev/null || :
shift 3
exec "$@"
`

// bootstrap installs the recipe's packages in root/ and puts the kernel's package in
// kernel/.
func (b *build) bootstrap(ctx context.Context) error {
	// Children get a signal when the thread that started them dies, so this thread must
	// live.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	a, err := findArchive(ctx)
	if err != nil {
		return err
	}
	r := b.recipe.normal()
	args := []string{
		"mmdebstrap", "--verbose", "--mode=root", "--format=directory", "--variant=essential", "--architectures=amd64",
		"--keyring=" + debianKeyring, "--include=" + strings.Join(r.Packages, ","),
		"--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\"",
		"--aptopt=Acquire::Retries \"3\"", "--aptopt=Acquire::http::Timeout \"30\"",
		"--dpkgopt=force-unsafe-io", // the result is synced once, at the end
		"--setup-hook=" + findPackages,
	}
	if r.Own == nil {
		args = append(args, "--customize-hook="+fetchKernel)
	}
	for _, o := range a.options {
		args = append(args, "--aptopt="+o)
	}
	for _, e := range r.Exclude {
		args = append(args, "--dpkgopt=path-exclude="+e)
	}
	args = append(args, r.Suite, b.path("root"))
	args = append(args, a.sources(r.Suite)...)

	cmd := contained(ctx, append([]string{"sh", "-c", unsynced, "sh", b.path("root"), b.path("empty"), b.path("layer")}, args...)...)
	// mmdebstrap's files outside of the root are removed with the build.
	cmd.Env = append(cmd.Env, "PAGURUS_PACKAGES="+strings.Join(r.Packages, " "), "PAGURUS_KERNEL="+b.path("kernel"), "PAGURUS_KERNEL_PACKAGE="+kernels[r.kernel()], "TMPDIR="+b.path("tmp"))
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	cmd.Stdout = cmd.Stderr
	b.progress("asking the Debian archive what it has", 0)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start mmdebstrap: %w", err)
	}
	log := newBootstrapLog(b.progress)
	readErr := log.read(pipe)
	err = cmd.Wait()
	if err != nil {
		return log.cause(r, err)
	}
	return readErr
}

// bootstrapLog parses the output of mmdebstrap, apt and dpkg.
type bootstrapLog struct {
	progress Progress
	packages int // number to install after the essential ones
	fetched  int
	set      int // unpacked or configured
	inside   bool
	errors   []string
	last     []string
	failed   string   // the first package that could not be installed
	words    []string // its earlier output, and dpkg's reason after
}

func newBootstrapLog(p Progress) *bootstrapLog { return &bootstrapLog{progress: p} }

// longestLine limits a stored line: mmdebstrap prints command lines of tens of kilobytes.
const longestLine = 400

func (l *bootstrapLog) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		var line []byte
		for {
			part, more, err := in.ReadLine()
			if room := longestLine - len(line); room > 0 {
				line = append(line, part[:min(room, len(part))]...)
			}
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read mmdebstrap's output: %w", err)
			}
			if !more {
				break
			}
		}
		l.line(string(bytes.TrimSpace(line)))
	}
}

var newlyInstalled = regexp.MustCompile(`^\d+ upgraded, (\d+) newly installed`)

// Each part's share of the total time, measured on 2 cores with a near mirror.
const (
	startInstall = 0.2
	endInstall   = 0.72
)

func (l *bootstrapLog) line(s string) {
	switch {
	case strings.HasPrefix(s, "I: downloading packages"):
		l.progress("downloading the base system", 0.05)
	case strings.HasPrefix(s, "I: extracting archives"):
		l.progress("unpacking the base system", 0.08)
	case strings.HasPrefix(s, "I: installing essential"):
		l.progress("installing the base system", 0.1)
	case strings.HasPrefix(s, "I: installing remaining"):
		l.inside = true
	case strings.HasPrefix(s, "I: running --customize-hook"):
		l.progress("downloading the kernel", endInstall)
	case strings.HasPrefix(s, "E:"):
		l.errors = append(l.errors, s)
	case l.failed == "" && brokenPackage.MatchString(s):
		l.failed = brokenPackage.FindStringSubmatch(s)[1]
		l.words = slices.Clone(l.last[lastOf(l.last, func(line string) bool { return beginning.MatchString(line) }):])
	case l.failed != "" && dpkgReason.MatchString(s):
		l.words = append(l.words, s)
	case l.inside:
		l.install(s)
	}
	if s != "" {
		l.last = append(l.last, s)
		if len(l.last) > 20 {
			l.last = l.last[1:]
		}
	}
}

// install follows apt inside the root.
func (l *bootstrapLog) install(s string) {
	if m := newlyInstalled.FindStringSubmatch(s); m != nil {
		l.packages, _ = strconv.Atoi(m[1]) // digits
		return
	}
	if l.packages == 0 {
		return
	}
	name := ""
	switch f := strings.Fields(s); {
	case strings.HasPrefix(s, "Get:") && len(f) > 4:
		l.fetched++
		part := float64(min(l.fetched, l.packages)) / float64(l.packages)
		l.progress(fmt.Sprintf("downloading %d packages", l.packages), 0.12+part*(startInstall-0.12))
		return
	case strings.HasPrefix(s, "Unpacking ") && len(f) > 1:
		name = "unpacking " + f[1]
	case strings.HasPrefix(s, "Setting up ") && len(f) > 2:
		name = "setting up " + f[2]
	default:
		return
	}
	l.set++
	part := float64(min(l.set, 2*l.packages)) / float64(2*l.packages)
	name, _, _ = strings.Cut(name, ":")
	l.progress(name, startInstall+part*(endInstall-startInstall))
}

// lastOf is the index after the last line for which holds is true.
func lastOf(lines []string, holds func(string) bool) int {
	for i := len(lines) - 1; i >= 0; i-- {
		if holds(lines[i]) {
			return i + 1
		}
	}
	return 0
}

// mostWords limits the shown lines of a failed program.
const mostWords = 5

// broken says which package failed, in which of its programs, with its output.
func (l *bootstrapLog) broken() error {
	words := strings.Join(l.words[max(0, len(l.words)-mostWords):], " | ")
	return fmt.Errorf("package %s cannot be installed; the last output: %s", l.failed, words)
}

var (
	brokenPackage = regexp.MustCompile(`^dpkg: error processing (?:package|archive) ([^ :]+)`)
	dpkgReason    = regexp.MustCompile(`subprocess returned error exit status|dependency problems|trying to overwrite`)
	beginning     = regexp.MustCompile(`^(Setting up|Unpacking|Preparing to unpack|Processing triggers for|Selecting) `)

	noHeaders = regexp.MustCompile(`E: without headers ([a-z0-9-]+) ([a-z0-9-]+)`)
	noPackage = regexp.MustCompile(`Unable to locate package (\S+)|Package '?([^ ']+)'? has no installation candidate|Couldn't find any package by regex '([^']+)'`)
	noHost    = regexp.MustCompile(`(?:Could not resolve|Unable to connect to|Could not connect to) '?([^' :]+)`)
	noSuite   = regexp.MustCompile(`repository '([^']+)' (?:does not have a Release file|no longer has a Release file)`)
)

// cause finds the sentence in the output that a person can act on.
func (l *bootstrapLog) cause(r Recipe, err error) error {
	all := strings.Join(append(append([]string{}, l.errors...), l.last...), "\n")
	if m := noHeaders.FindStringSubmatch(all); m != nil {
		return fmt.Errorf("the image would have a compiler and %s without its headers, which Pagurus's own library needs too: add %s to --packages, or leave gcc out and compile elsewhere", m[1], m[2])
	}
	if m := noPackage.FindStringSubmatch(all); m != nil {
		return fmt.Errorf("no package %[2]q in Debian %[1]s: `apt-cache search` or packages.debian.org lists the packages", r.Suite, m[1]+m[2]+m[3])
	}
	if strings.Contains(all, "No space left on device") {
		return syscall.ENOSPC
	}
	if m := noSuite.FindStringSubmatch(all); m != nil {
		return fmt.Errorf("the archive has no suite %q (%s)", r.Suite, m[1])
	}
	if m := noHost.FindStringSubmatch(all); m != nil {
		return fmt.Errorf("the Debian archive at %s cannot be reached: is the network up, and is a proxy needed?", m[1])
	}
	if l.failed != "" {
		return l.broken()
	}
	for _, e := range l.errors {
		if !strings.HasPrefix(e, "E: mmdebstrap failed") {
			return fmt.Errorf("mmdebstrap: %s", strings.TrimPrefix(e, "E: "))
		}
	}
	if len(l.last) > 0 {
		return fmt.Errorf("mmdebstrap: %w: %s", err, l.last[len(l.last)-1])
	}
	return fmt.Errorf("mmdebstrap: %w", err)
}
