package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIsolateBootRefusesWhatDoesNotGoTogether(t *testing.T) {
	for line, want := range map[string]string{
		"--dry-run host1":             "go with --boot",
		"--boot host1 on":             "leave \"host1\" out",
		"--boot --undo --cores 1":     "leave --cores and --domain out",
		"--boot --undo --domain":      "leave --cores and --domain out",
		"--boot --dry-run --cores x":  "--cores",
		"--boot --dry-run --cores 0-": "--cores",
	} {
		var out bytes.Buffer
		cmd := isolateCommand(&out, func(string) {})
		cmd.SetArgs(strings.Fields(line))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// What changes is said before; --dry-run changes nothing.
func TestIsolateBootSaysWhatItChanges(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"sys/devices/system/cpu/online": "0-3\n", "etc/default/grub": "GRUB_CMDLINE_LINUX=\"\"\n", "usr/sbin/update-grub": "#!/bin/sh\n",
		"proc/sys/kernel/osrelease": "6.12.0\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	call := func(b booting, cores string) string {
		t.Helper()
		var out bytes.Buffer
		b.on, b.root, b.out, b.say = true, root, &out, func(s string) { out.WriteString(s + "\n") }
		if err := b.run(t.Context(), cores); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	file := filepath.Join(root, "etc/default/grub.d/90-pagurus-isolate.cfg")
	said := call(booting{dry: true}, "")
	if _, err := os.Stat(file); err == nil || !strings.Contains(said, "write "+file+":\n") || !strings.Contains(said, "nohz_full=1-3 ") || strings.Contains(said, "done") {
		t.Errorf("dry it says %q, and the file is there: %v", said, err == nil)
	}
	if said := call(booting{}, "2-3"); !strings.Contains(said, "run "+filepath.Join(root, "usr/sbin/update-grub")+"\n") || !strings.Contains(said, "done: restart the machine") {
		t.Errorf("it says %q", said)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "isolcpus=managed_irq,2-3 nohz_full=2-3") {
		t.Errorf("the file is %q, %v", text, err)
	}
	if said := call(booting{undo: true, json: true}, ""); !strings.Contains(said, `"path":"`+file+`"`) {
		t.Errorf("undone it says %q", said)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is still there")
	}
	if said := call(booting{undo: true}, ""); !strings.Contains(said, "nothing to put back") {
		t.Errorf("undone again it says %q", said)
	}
}
