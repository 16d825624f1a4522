package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pagurus/fleet"
)

// Files of the job that programs have open for writing are told, and no others.
func TestOpenFilesAreTold(t *testing.T) {
	dir, read := t.TempDir(), t.TempDir()
	script := exec.Command("sh", "-c", `exec 3>>log 4<input 5>"$0/other" 6>/dev/null; printf abc >&3; echo; exec sleep 60`, read)
	script.Dir = dir
	if err := os.WriteFile(filepath.Join(dir, "input"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := script.StdoutPipe()
	if err == nil {
		err = script.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = script.Process.Kill(); _ = script.Wait() }()
	if _, err := said.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	m := newMember(nil, t.TempDir())
	if none, err := m.OpenFiles(t.Context()); err != nil || len(none.Files) > 0 {
		t.Errorf("before it is a member: %+v, %v", none, err)
	}
	m.setting = &setting{setup: fleet.Setup{Export: dir, Files: []fleet.Directory{{Path: read, ReadOnly: true}}}}
	got, err := m.OpenFiles(t.Context())
	if err != nil || len(got.Files) != 1 || got.Files[0].At != dir || got.Files[0].Name != "/log" || got.Files[0].Bytes != 3 || got.Files[0].Inode == 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
