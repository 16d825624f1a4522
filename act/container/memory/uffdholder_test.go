package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// holderSubject has this binary open userfaultfds, and close them in order, as it is told.
const holderSubject = "PAGURUS_HOLDER_TEST"

func openAndClose() {
	var open []int
	for in := bufio.NewReader(os.Stdin); ; fmt.Println("done") {
		switch word, err := in.ReadString('\n'); {
		case err != nil:
			os.Exit(0)
		case word == "open\n":
			fd, _, _ := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|1, 0, 0)
			open = append(open, int(fd))
		default:
			_ = unix.Close(open[0])
			open = open[1:]
		}
	}
}

// TestHoldAll: userfaultfds that a process opens are held, those that it closes are not, and
// those that it has when it is killed stay held.
func TestHoldAll(t *testing.T) {
	testkit.Root(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holderSubject+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	g, err := newUffdHolder(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	look := func(want int, after string) {
		t.Helper()
		if held, err := g.HoldAll(); held != want || err != nil || g.Held() != want {
			t.Errorf("%s: %d are held, want %d: %v", after, held, want, err)
		}
	}
	look(0, "at first")
	for i, do := range []struct {
		word string
		want int
	}{{"open", 1}, {"open", 2}, {"close", 1}, {"open", 2}} {
		if _, err := io.WriteString(in, do.word+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := said.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		look(do.want, fmt.Sprint(i, do.word))
	}
	if g.Ended() {
		t.Error("it is said to have ended")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	look(2, "killed")
	_ = cmd.Wait()
	look(2, "and buried")
	if !g.Ended() {
		t.Error("it is said to live")
	}
}
