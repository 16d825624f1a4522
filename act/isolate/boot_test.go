package isolate

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestBootWords(t *testing.T) {
	online := set(t, "0-15")
	const plain = "isolcpus=managed_irq,2-15 nohz_full=2-15 rcu_nocbs=2-15 irqaffinity=0-1"
	if got := strings.Join(bootWords(set(t, "2-15"), online, false), " "); got != plain {
		t.Errorf("got %s", got)
	}
	if got := bootWords(set(t, "4,6-7"), online, true)[0]; got != "isolcpus=managed_irq,domain,4,6-7" {
		t.Errorf("got %s", got)
	}
	for cpus, want := range map[string]string{"": "name at least one", "0-3": "keeps the time", "0-15": "everything else needs", "3,16": "there is no CPU 16", "2-15": ""} {
		if err := checkBoot(set(t, cpus), online); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", cpus, err, want)
		}
	}
	for line, want := range map[string]string{plain: "2-15", "quiet": "", `"nohz_full=1 nohz_full=3"`: "3", "nohz_full=": "", "nohz_full=x": "", "xnohz_full=1": ""} {
		if got := wordCPUs(line, wordTickless); got.String() != want {
			t.Errorf("%q has %s, want %s", line, got, want)
		}
	}
	if got := wordCPUs("isolcpus=managed_irq,domain,4,6-7", wordIsolated); got.String() != "4,6-7" {
		t.Errorf("isolcpus has %s", got)
	}
	for line, want := range map[string]string{"quiet splash": "", `GRUB_CMDLINE_LINUX="nohz_full=1 quiet"`: "nohz_full=1", "GRUB_CMDLINE_LINUX=isolcpus=3": "isolcpus=3", "irqaffinity": ""} {
		if got := foreignWord(line); got != want {
			t.Errorf("%q has %q, want %q", line, got, want)
		}
	}
	for _, made := range []bool{true, false} {
		if words, was, err := parseBootNote(noteText([]string{"a=1", "b=2"}, made)); err != nil || was != made || !slices.Equal(words, []string{"a=1", "b=2"}) {
			t.Errorf("the note is read as %q, %t, %v", words, was, err)
		}
	}
	for _, bad := range []string{"", "x", bootMark, bootMark + "\nmade", bootMark + "\nremoved a=1", "x\nmade a=1"} {
		if words, _, err := parseBootNote(bad); err == nil {
			t.Errorf("%q is read as %q", bad, words)
		}
	}
}

// computer is a root directory with the files of a machine of four CPUs.
func computer(t *testing.T, more map[string]string) Boot {
	t.Helper()
	b := Boot{Root: t.TempDir()}
	for name, text := range map[string]string{"sys/devices/system/cpu/online": "0-3\n", "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1\n",
		"proc/sys/kernel/osrelease": "6.12.0\n", "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/vda quiet\n", "sys/devices/system/cpu/nohz_full": "(null)\n"} {
		write1(t, b, name, text)
	}
	for name, text := range more {
		write1(t, b, name, text)
	}
	return b
}

func write1(t *testing.T, b Boot, name, text string) {
	t.Helper()
	mode := os.FileMode(0o644)
	if strings.HasPrefix(text, "#!") {
		mode = 0o755
	}
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path(name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// files are all files of a computer with their contents.
func files(t *testing.T, b Boot) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(b.path(""), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, b.path(""))] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// updateGRUB reads the settings as Debian's grub-mkconfig does, in the same shell, and writes the line of a kernel.
const updateGRUB = `#!/bin/sh
set -e
cd "$(dirname "$0")/../.."
[ ! -e broken ] || { echo "no such disk" >&2; exit 1; }
. ./etc/default/grub
for x in ./etc/default/grub.d/*.cfg; do [ ! -e "$x" ] || . "$x"; done
mkdir -p boot/grub
echo "linux /vmlinuz root=/dev/vda ro $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT" >boot/grub/grub.cfg
`

func carryOut(t *testing.T, b Boot, c BootChange, err error) {
	t.Helper()
	if err == nil {
		err = b.Do(t.Context(), c)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestGRUBIsPreparedAndPutBack(t *testing.T) {
	b := computer(t, map[string]string{"etc/default/grub": "GRUB_CMDLINE_LINUX_DEFAULT=quiet\nGRUB_CMDLINE_LINUX=\"a=1\"\n", "usr/sbin/update-grub": updateGRUB,
		"boot/config-6.12.0": "CONFIG_RCU_NOCB_CPU=y\n", "sys/module/kvm_amd/parameters/avic": "N\n"})
	if out, err := exec.CommandContext(t.Context(), b.program("update-grub")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := files(t, b)
	cpus, err := b.Usual()
	if err != nil || cpus.String() != "2-3" {
		t.Fatalf("usual are %s, %v", cpus, err)
	}
	c, err := b.Prepare(cpus, false)
	if after := files(t, b); len(after) != len(before) {
		t.Error("to look at it changed something")
	}
	if said := strings.Join(c.Notes, "\n"); !strings.Contains(said, "without CONFIG_NO_HZ_FULL") || strings.Contains(said, "NOCB") || !strings.Contains(said, "avic of kvm_amd is off") ||
		!strings.Contains(said, "whose interrupt stops it") {
		t.Errorf("the notes are %q", c.Notes)
	}
	carryOut(t, b, c, err)
	const words = "isolcpus=managed_irq,2-3 nohz_full=2-3 rcu_nocbs=2-3 irqaffinity=0-1"
	if got := b.text(grubResult); got != "linux /vmlinuz root=/dev/vda ro a=1 "+words+" quiet\n" {
		t.Errorf("it boots %q", got)
	}
	if s := b.State(); s == nil || s.Prepared.String() != "2-3" || len(s.Asked)+len(s.Tickless) > 0 {
		t.Errorf("the state is %+v", s)
	}
	if c, err := b.Prepare(cpus, false); err != nil || c.Needed() {
		t.Errorf("again: %+v, %v", c, err)
	}
	// Killed before update-grub had run.
	write1(t, b, grubResult, before["/"+grubResult])
	if c, err := b.Prepare(cpus, false); err != nil || !c.Needed() || len(c.Files) > 0 {
		t.Errorf("after a kill: %+v, %v", c, err)
	}
	// Other CPUs, but the boot loader's program fails.
	c, err = b.Prepare(set(t, "3"), true)
	if err != nil {
		t.Fatal(err)
	}
	write1(t, b, "broken", "x")
	if err := b.Do(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no such disk") || !strings.Contains(b.text(grubFile), words) {
		t.Errorf("a failure is %v, and leaves %q", err, b.text(grubFile))
	}
	_ = os.Remove(b.path("broken"))
	c, err = b.Undo()
	carryOut(t, b, c, err)
	if after := files(t, b); after["/"+grubResult] != before["/"+grubResult] || len(after) != len(before) {
		t.Errorf("it is not as before: %q", after)
	}
	if c, err := b.Undo(); err != nil || c.Needed() || b.State() != nil {
		t.Errorf("undone again: %+v, %v, %+v", c, err, b.State())
	}
	write1(t, b, grubResult, "linux "+words)
	if c, err := b.Undo(); err != nil || !c.Needed() {
		t.Errorf("after a kill in undo: %+v, %v", c, err)
	}
}

// kernelInstall writes an entry with the command line, as the plug-in of systemd does.
const kernelInstall = `#!/bin/sh
set -e
[ "$1" = add ] && [ "$2" = 6.12.0 ] || exit 2
cd "$(dirname "$0")/../.."
line=$(cat etc/kernel/cmdline 2>/dev/null || echo "root=/dev/vda quiet")
mkdir -p boot/loader/entries
echo "options $line" >boot/loader/entries/m-6.12.0.conf
`

func TestKernelInstallIsPreparedAndPutBack(t *testing.T) {
	for name, line := range map[string]string{"with a line": "root=/dev/vda quiet\n", "without": ""} {
		t.Run(name, func(t *testing.T) {
			b := computer(t, map[string]string{"usr/bin/kernel-install": kernelInstall, "boot/loader/entries/m-6.12.0.conf": "options root=/dev/vda quiet\n",
				"sys/module/kvm_intel/parameters/enable_apicv": "Y\n", "sys/module/kvm_intel/parameters/preemption_timer": "Y\n"})
			if line != "" {
				write1(t, b, lineFile, line)
			}
			before := files(t, b)
			c, err := b.Prepare(set(t, "1-3"), false)
			carryOut(t, b, c, err)
			if said := strings.Join(c.Notes, "\n"); !strings.Contains(said, "enable_apicv of kvm_intel is on") || !strings.Contains(said, "preemption_timer of kvm_intel is on") {
				t.Errorf("the notes are %q", c.Notes)
			}
			const want = "root=/dev/vda quiet isolcpus=managed_irq,1-3 nohz_full=1-3 rcu_nocbs=1-3 irqaffinity=0\n"
			if got := b.text("boot/loader/entries/m-6.12.0.conf"); got != "options "+want {
				t.Errorf("it boots %q", got)
			}
			if c, err := b.Prepare(set(t, "1-3"), false); err != nil || c.Needed() {
				t.Errorf("again: %+v, %v", c, err)
			}
			c, err = b.Prepare(set(t, "2"), false)
			carryOut(t, b, c, err)
			if got := b.text(lineFile); got != "root=/dev/vda quiet isolcpus=managed_irq,2 nohz_full=2 rcu_nocbs=2 irqaffinity=0-1,3\n" || b.State().Prepared.String() != "2" {
				t.Errorf("other CPUs give %q", got)
			}
			c, err = b.Undo()
			carryOut(t, b, c, err)
			for path, text := range files(t, b) {
				if before[path] != text {
					t.Errorf("%s is %q, was %q", path, text, before[path])
				}
			}
		})
	}
}

func TestWhatPreventsPreparing(t *testing.T) {
	cpus := set(t, "2-3")
	grub := map[string]string{"etc/default/grub": "GRUB_CMDLINE_LINUX=\"\"\n# nohz_full=1 once\n", "usr/sbin/update-grub": updateGRUB}
	for name, c := range map[string]struct {
		more map[string]string
		want string
	}{
		"nothing to change": {nil, "Add to the kernel's command line by hand: isolcpus=managed_irq,2-3"},
		"only a program":    {map[string]string{"usr/bin/kernel-install": kernelInstall}, "by hand"},
		"another's word":    {map[string]string{"etc/default/grub.d/50-mine.cfg": "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX nohz_full=1\"\n"}, `50-mine.cfg has "nohz_full=1" already`},
		"another's line":    {map[string]string{lineFile: "quiet isolcpus=1\n"}, `cmdline has "isolcpus=1" already`},
	} {
		if _, err := computer(t, c.more).Prepare(cpus, false); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := computer(t, grub).Prepare(cpus, false); err != nil {
		t.Errorf("a comment is in the way: %v", err)
	}
	b := computer(t, grub)
	write1(t, b, grubFile, "GRUB_CMDLINE_LINUX=mine\n")
	if _, err := b.Undo(); err == nil || !strings.Contains(err.Error(), "remove it by hand") {
		t.Errorf("undo takes another's file: %v", err)
	}
	write1(t, b, "proc/cmdline", "quiet nohz_full=1-3\n")
	write1(t, b, "sys/devices/system/cpu/nohz_full", "1-3\n")
	if s := b.State(); s == nil || s.Asked.String() != "1-3" || s.Tickless.String() != "1-3" {
		t.Errorf("the state is %+v", s)
	}
}
