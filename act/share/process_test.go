package share

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"pagurus/internal/testkit"
)

// Any user may run a program with a server's command line; only root's with the server's
// program counts. tail stands for the server, because it accepts the same arguments and
// keeps running.
func TestOnlyRootsServerIsAdopted(t *testing.T) {
	testkit.Root(t, "tail", "ganesha.nfsd")
	tail, err := exec.LookPath("tail")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(tail)
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	os.Chmod(filepath.Dir(top), 0o755) // the user starts a program below
	os.Chmod(top, 0o755)
	program, config := filepath.Join(top, "server"), filepath.Join(top, "ganesha.conf")
	write(t, program, string(text), 0, 0o755)
	start := func(uid uint32) int {
		t.Helper()
		cmd := exec.Command(program, "-F", "-f", config, "-n", "1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd.Process.Pid
	}
	adopted := func(program string) (pids []int) {
		t.Helper()
		found, err := findServers(program, config)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range found {
			pids = append(pids, p.pid)
			p.close()
		}
		return pids
	}
	start(user)
	if pids := adopted(program); len(pids) > 0 {
		t.Errorf("a user's process %v is adopted", pids)
	}
	own := start(0)
	if pids := adopted(program); len(pids) != 1 || pids[0] != own {
		t.Errorf("adopted %v instead of %d", pids, own)
	}
	if pids := adopted("ganesha.nfsd"); len(pids) > 0 {
		t.Errorf("process %v with another program is adopted", pids)
	}
	for _, what := range []string{"upgraded", "removed"} {
		os.Remove(program)
		if what == "upgraded" {
			write(t, program, string(text), 0, 0o755)
		}
		if pids := adopted(program); len(pids) != 1 || pids[0] != own {
			t.Errorf("with the program %s: adopted %v instead of %d", what, pids, own)
		}
	}
}
