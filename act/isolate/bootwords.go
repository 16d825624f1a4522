// This file knows the words of the kernel's command line that isolate CPUs from its start. It is pure.

package isolate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pagurus/fleet"
)

// The names of these words. Each is followed by = and CPUs.
const (
	wordTickless   = "nohz_full"   // no timer tick while one program runs
	wordCallbacks  = "rcu_nocbs"   // the kernel frees memory elsewhere
	wordInterrupts = "irqaffinity" // new interrupts go to the other CPUs
	wordIsolated   = "isolcpus"
)

var bootNames = []string{wordIsolated, wordTickless, wordCallbacks, wordInterrupts}

// Flags of isolcpus. managed: interrupts that drivers place themselves keep off, if they can. domain: the scheduler
// does not spread threads over these CPUs.
const (
	flagManaged = "managed_irq"
	flagDomain  = "domain"
)

// bootWords are the words for a kernel's command line. domain: guests pin every thread, so the scheduler need not spread
// them.
func bootWords(isolated, online fleet.CPUSet, domain bool) []string {
	flags := flagManaged
	if domain {
		flags += "," + flagDomain
	}
	return []string{
		wordIsolated + "=" + flags + "," + isolated.String(),
		wordTickless + "=" + isolated.String(),
		wordCallbacks + "=" + isolated.String(),
		wordInterrupts + "=" + online.Minus(isolated).String(),
	}
}

// checkBoot says why these CPUs cannot be isolated from the start.
func checkBoot(isolated, online fleet.CPUSet) error {
	if err := check(isolated, online); err != nil {
		return err
	}
	if isolated.Has(online[0]) {
		return fmt.Errorf("CPU %d cannot be among them: it keeps the time for the others", online[0])
	}
	return nil
}

// foreignWord returns a word of a command line that isolates CPUs; empty: there is none.
func foreignWord(line string) string {
	for _, w := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n\"'", r) }) {
		// A file of GRUB's may set a variable to the word.
		if _, value, is := strings.Cut(w, "GRUB_CMDLINE_LINUX="); is {
			w = value
		}
		if name, _, is := strings.Cut(w, "="); is && slices.Contains(bootNames, name) {
			return w
		}
	}
	return ""
}

// wordCPUs returns the CPUs that a command line gives to a word; the last one counts, as for the kernel.
func wordCPUs(line, name string) (out fleet.CPUSet) {
	for w := range strings.FieldsSeq(line) {
		value, is := strings.CutPrefix(strings.Trim(w, `"'`), name+"=")
		if !is {
			continue
		}
		var cpus []string
		for part := range strings.SplitSeq(value, ",") {
			if part != "" && part[0] >= '0' && part[0] <= '9' {
				cpus = append(cpus, part)
			}
		}
		if set, err := fleet.ParseCPUs(strings.Join(cpus, ",")); err == nil {
			out = set
		}
	}
	return out
}

// bootMark begins every file that PrepareBoot has made.
const bootMark = "# Written by `pagurus isolate --boot`; `pagurus isolate --boot --undo` removes it."

// grubText is the content of GRUB's file.
func grubText(words []string) string {
	return bootMark + "\nGRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX " + strings.Join(words, " ") + "\"\n"
}

// lineWith returns a command line with words added that it lacks, on one line.
func lineWith(line string, words []string) string {
	all := strings.Fields(line)
	for _, w := range words {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return strings.Join(all, " ") + "\n"
}

// lineWithout returns a command line without words.
func lineWithout(line string, words []string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(line), func(w string) bool { return slices.Contains(words, w) }), " ") + "\n"
}

// noteText and parseBootNote are the two ends of the note beside kernel-install's command line. made: there was none
// before.
func noteText(words []string, made bool) string {
	how := "added"
	if made {
		how = "made"
	}
	return bootMark + "\n" + how + " " + strings.Join(words, " ") + "\n"
}

func parseBootNote(text string) (words []string, made bool, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	all := strings.Fields(lines[len(lines)-1])
	if len(lines) != 2 || lines[0] != bootMark || len(all) < 2 || all[0] != "made" && all[0] != "added" {
		return nil, false, errors.New("it is not the note that `pagurus isolate --boot` wrote")
	}
	return all[1:], all[0] == "made", nil
}
