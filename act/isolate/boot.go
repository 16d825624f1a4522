package isolate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// Boot is the configuration from which a machine's boot loader takes the kernel's command line: GRUB's files as Debian
// and Ubuntu have them, or kernel-install's, which systemd-boot uses. Changes count from the next boot.
type Boot struct {
	Root string // of the machine's files; empty: /
}

// The files below the root.
const (
	grubDefaults = "etc/default/grub"
	grubFolder   = "etc/default/grub.d"
	grubFile     = grubFolder + "/90-pagurus-isolate.cfg"
	grubResult   = "boot/grub/grub.cfg"

	lineFile = "etc/kernel/cmdline"
	lineNote = "etc/kernel/pagurus-isolate"
)

// programs are where a boot loader's programs are.
var programs = []string{"usr/sbin", "sbin", "usr/bin", "bin"}

// entries are where systemd-boot has what kernel-install made.
var entries = []string{"boot/loader/entries", "efi/loader/entries", "boot/efi/loader/entries"}

// BootChange is what has to be done for a machine to boot otherwise than now.
type BootChange struct {
	Words   []string   `json:"words,omitempty"` // of the kernel's command line, from the next boot on; none: those of Pagurus go
	Files   []BootFile `json:"files,omitempty"` // that are written or removed, in order
	Command []string   `json:"command,omitempty"`
	Notes   []string   `json:"notes,omitempty"` // for people

	restore []BootFile
}

// BootFile is a file with its content.
type BootFile struct {
	Path string `json:"path"`
	Text string `json:"text,omitempty"` // empty: it is removed
}

// Needed reports whether anything has to be done.
func (c BootChange) Needed() bool { return len(c.Command) > 0 }

func (b Boot) path(name string) string { return filepath.Join("/", b.Root, name) }

func (b Boot) text(name string) string {
	text, _ := os.ReadFile(b.path(name)) // what cannot be read is not there
	return string(text)
}

func (b Boot) program(name string) string {
	for _, dir := range programs {
		if st, err := os.Stat(b.path(dir + "/" + name)); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return b.path(dir + "/" + name)
		}
	}
	return ""
}

// Usual are all CPUs but those of the first core.
func (b Boot) Usual() (fleet.CPUSet, error) {
	online, err := fleet.ParseCPUs(b.text("sys/devices/system/cpu/online"))
	if err != nil || len(online) == 0 {
		return nil, fmt.Errorf("read which CPUs there are: %w", errors.Join(err, errIfNone(online)))
	}
	first, err := fleet.ParseCPUs(b.text(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", online[0])))
	if err != nil || len(first) == 0 {
		first = online[:1]
	}
	return online.Minus(first), nil
}

func errIfNone(online fleet.CPUSet) error {
	if len(online) == 0 {
		return errors.New("/sys/devices/system/cpu/online names none")
	}
	return nil
}

// Prepare says what has to be done for the machine to boot with isolated CPUs. It changes nothing. domain: the scheduler
// does not spread threads over them.
func (b Boot) Prepare(isolated fleet.CPUSet, domain bool) (BootChange, error) {
	online, err := fleet.ParseCPUs(b.text("sys/devices/system/cpu/online"))
	if err == nil {
		err = checkBoot(isolated, online)
	}
	if err != nil {
		return BootChange{}, fmt.Errorf("isolate CPUs %s from the next boot on: %w", isolated, err)
	}
	c := BootChange{Words: bootWords(isolated, online, domain)}
	if foreign, file := b.foreign(); foreign != "" {
		return BootChange{}, fmt.Errorf("%s has %q already, which Pagurus did not write: remove it there first", file, foreign)
	}
	switch {
	case b.usesGRUB():
		c.change(b, grubFile, grubText(c.Words))
		c.Command = []string{b.program("update-grub")}
	case b.usesKernelInstall():
		line, made := b.text(lineFile), false
		if had, was, err := parseBootNote(b.text(lineNote)); err == nil {
			line, made = lineWithout(line, had), was
		} else if strings.TrimSpace(line) == "" {
			line, made = b.runningLine(), true
		}
		c.change(b, lineNote, noteText(c.Words, made))
		c.change(b, lineFile, lineWith(line, c.Words))
		c.Command = b.install()
	default:
		return BootChange{}, errNoLoader(c.Words)
	}
	c.Notes = b.notes(isolated)
	if len(c.Files) == 0 && b.made(c.Words) {
		c.Command = nil
	}
	return c, nil
}

func errNoLoader(words []string) error {
	return fmt.Errorf("no boot loader was found whose configuration Pagurus can change: neither /%s with update-grub, nor kernel-install with /%s or a /boot/loader. Add to the kernel's command line by hand: %s",
		grubDefaults, lineFile, strings.Join(words, " "))
}

// Undo says what has to be done for the machine to boot as if Prepare had never been. It changes nothing.
func (b Boot) Undo() (BootChange, error) {
	var c BootChange
	if text := b.text(grubFile); text != "" {
		if !strings.HasPrefix(text, bootMark) {
			return c, fmt.Errorf("%s is not what `pagurus isolate --boot` wrote: remove it by hand", b.path(grubFile))
		}
		c.change(b, grubFile, "")
		if b.program("update-grub") == "" {
			return c, fmt.Errorf("there is no update-grub any more: remove %s by hand", b.path(grubFile))
		}
		c.Command = []string{b.program("update-grub")}
		return c, nil
	}
	text := b.text(lineNote)
	if text == "" {
		// An earlier undo may have been killed before update-grub had run.
		if foreign, _ := b.foreign(); foreign == "" && b.usesGRUB() && foreignWord(b.text(grubResult)) != "" {
			c.Command = []string{b.program("update-grub")}
		}
		return c, nil
	}
	words, made, err := parseBootNote(text)
	if err != nil {
		return c, fmt.Errorf("%s: %w: take %s out of %s by hand", b.path(lineNote), err, strings.Join(bootNames, ", "), b.path(lineFile))
	}
	line := lineWithout(b.text(lineFile), words)
	if made {
		line = ""
	}
	c.change(b, lineFile, line)
	c.change(b, lineNote, "")
	if c.Command = b.install(); c.Command[0] == "" {
		return c, fmt.Errorf("there is no kernel-install any more: remove %s and what it names by hand", b.path(lineNote))
	}
	return c, nil
}

// change adds a file, unless it has this content.
func (c *BootChange) change(b Boot, name, text string) {
	if had := b.text(name); had != text {
		c.Files = append(c.Files, BootFile{b.path(name), text})
		c.restore = append(c.restore, BootFile{b.path(name), had})
	}
}

func (b Boot) usesGRUB() bool {
	return b.text(grubDefaults) != "" && b.program("update-grub") != ""
}

func (b Boot) usesKernelInstall() bool {
	if b.program("kernel-install") == "" {
		return false
	}
	there := func(name string) bool { _, err := os.Stat(b.path(name)); return err == nil }
	return b.text(lineFile) != "" || slices.ContainsFunc(entries, there)
}

// install is the command that makes the running kernel's entry again.
func (b Boot) install() []string {
	release := strings.TrimSpace(b.text("proc/sys/kernel/osrelease"))
	image := b.path("usr/lib/modules/" + release + "/vmlinuz")
	if _, err := os.Stat(image); err != nil {
		image = b.path("boot/vmlinuz-" + release)
	}
	return []string{b.program("kernel-install"), "add", release, image}
}

// runningLine is the running kernel's command line without what its boot loader added.
func (b Boot) runningLine() string {
	if line := b.text("usr/lib/kernel/cmdline"); strings.TrimSpace(line) != "" {
		return line
	}
	return strings.Join(slices.DeleteFunc(strings.Fields(b.text("proc/cmdline")), func(w string) bool {
		return strings.HasPrefix(w, "initrd=") || strings.HasPrefix(w, "BOOT_IMAGE=")
	}), " ")
}

// foreign finds a word of others that isolates CPUs, and its file.
func (b Boot) foreign() (word, file string) {
	files := []string{grubDefaults}
	more, _ := filepath.Glob(b.path(grubFolder + "/*.cfg")) // the pattern is well formed
	for _, f := range more {
		if f != b.path(grubFile) {
			files = append(files, strings.TrimPrefix(f, b.path("")))
		}
	}
	for _, f := range files {
		var lines []string
		for l := range strings.Lines(b.text(f)) {
			if !strings.HasPrefix(strings.TrimSpace(l), "#") {
				lines = append(lines, l)
			}
		}
		if w := foreignWord(strings.Join(lines, "")); w != "" {
			return w, b.path(f)
		}
	}
	line := b.text(lineFile)
	if words, _, err := parseBootNote(b.text(lineNote)); err == nil {
		line = lineWithout(line, words)
	}
	return foreignWord(line), b.path(lineFile)
}

// made reports whether the boot loader's own files have these words: the command has run since they were
// written.
func (b Boot) made(words []string) bool {
	files := []string{b.path(grubResult)}
	if !b.usesGRUB() {
		files = nil
		for _, dir := range entries {
			more, _ := filepath.Glob(b.path(dir + "/*.conf"))
			files = append(files, more...)
		}
	}
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && bytes.Contains(text, []byte(strings.Join(words, " ")))
	})
}

// notes says what may prevent the effect.
func (b Boot) notes(isolated fleet.CPUSet) (out []string) {
	release := strings.TrimSpace(b.text("proc/sys/kernel/osrelease"))
	if config := b.text("boot/config-" + release); config != "" {
		for _, has := range [][2]string{{"CONFIG_NO_HZ_FULL=y", "the timer tick of CPUs " + isolated.String() + " stays: kernel " + release + " was built without CONFIG_NO_HZ_FULL"},
			{"CONFIG_RCU_NOCB_CPU=y", "the kernel frees memory on CPUs " + isolated.String() + ", too: " + release + " was built without CONFIG_RCU_NOCB_CPU"}} {
			if !strings.Contains(config, has[0]+"\n") {
				out = append(out, has[1])
			}
		}
	}
	return append(out, b.exitless()...)
}

// exitless says whether interrupts reach the guests of KVM without stopping them, and how their timers do, where KVM is loaded.
func (b Boot) exitless() []string {
	on := func(module, parameter string) (is, known bool) {
		v := strings.TrimSpace(b.text("sys/module/" + module + "/parameters/" + parameter))
		return v == "Y" || v == "1", v != ""
	}
	// Intel's processors have a timer for guests, AMD's have none.
	timer := "a virtual machine's timer is one of its host, whose interrupt stops it"
	if is, _ := on("kvm_intel", "preemption_timer"); is {
		timer = "a virtual machine's timer is the processor's own, which stops it without an interrupt of its host: preemption_timer of kvm_intel is on"
	}
	for _, m := range [][2]string{{"kvm_intel", "enable_apicv"}, {"kvm_amd", "avic"}} {
		switch is, known := on(m[0], m[1]); {
		case known && is:
			return []string{"interrupts reach virtual machines without stopping them: " + m[1] + " of " + m[0] + " is on", timer}
		case known:
			return []string{fmt.Sprintf("every interrupt stops a virtual machine: %s of %s is off, or the processor has it not", m[1], m[0]), timer}
		}
	}
	return nil
}

// loaderLimit is for update-grub, which looks at all disks, and kernel-install, which may make an initial RAM disk.
const loaderLimit = 10 * time.Minute

// Do carries out a change. After an error the files are as they were before, unless the error says otherwise; the boot
// loader's own files are written by its program.
func (b Boot) Do(ctx context.Context, c BootChange) error {
	if !c.Needed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loaderLimit)
	defer cancel()
	err := put(c.Files)
	if err == nil {
		out, failed := exec.CommandContext(ctx, c.Command[0], c.Command[1:]...).CombinedOutput()
		if failed == nil {
			return nil
		}
		err = fmt.Errorf("%s: %w: %s", strings.Join(c.Command, " "), failed, lastLines(string(out)))
	}
	slices.Reverse(c.restore)
	if back := put(c.restore); back != nil {
		return errors.Join(err, fmt.Errorf("the files could not be put back: %w", back))
	}
	return fmt.Errorf("%w; the files are as they were", err)
}

// put writes and removes files.
func put(files []BootFile) error {
	for _, f := range files {
		if f.Text == "" {
			if err := os.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := note.WriteDurably(f.Path, []byte(f.Text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// lastLines are the end of what a program said, on one line.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// State says which CPUs the kernel isolates from its start, and will after the next; nil: none.
func (b Boot) State() *fleet.BootIsolation {
	var is fleet.BootIsolation
	is.Prepared = wordCPUs(strings.ReplaceAll(b.text(grubFile), `"`, " "), wordTickless)
	if words, _, err := parseBootNote(b.text(lineNote)); err == nil && len(is.Prepared) == 0 {
		is.Prepared = wordCPUs(strings.Join(words, " "), wordTickless)
	}
	is.Asked = wordCPUs(b.text("proc/cmdline"), wordTickless)
	is.Tickless, _ = fleet.ParseCPUs(b.text("sys/devices/system/cpu/nohz_full")) // "(null)" if there are none
	if len(is.Prepared)+len(is.Asked)+len(is.Tickless) == 0 {
		return nil
	}
	return &is
}
