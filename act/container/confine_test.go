package container_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"pagurus/fleet"
)

// attempts lists attacks by a container's root, each of which must fail.
var attempts = []string{
	"mount -t tmpfs x /mnt", "perl -e 'exit(syscall(165, \"x\", \"/mnt\", \"tmpfs\", 0, 0) == 0 ? 0 : 1)'",
	"mknod /tmp/disk b 254 0", "mknod /tmp/null c 1 3", "echo x >/proc/sysrq-trigger", "echo x >/proc/sys/kernel/hostname",
	"echo 1 >/proc/sys/vm/drop_caches", "head -c 1 /proc/kcore | grep -q .", "grep -q . /proc/keys", "grep -q . /proc/timer_list",
	"date -s 2020-01-01", "hostname other", "unshare -U true", "unshare -m true", "unshare -n true", "nsenter -t 1 -m true",
	`find /sys/ -type f \( -name serial -o -name serial_number -o -name wwid -o -name 'vpd_pg8*' -o -name '*_serial' -o -name '*_uuid' -o -name uuid -o -name edid -o -name cid \) -exec cat {} + | grep -qa .`,
	"dmesg", "chroot /proc/1/root/.. ls /containers", "mkdir /sys/x", "mkdir /dev/x", "kill -0 2147483647", "touch /run/pagurus/pagurus-guest", "chmod 0 /run/pagurus/pagurus-guest", "rm /run/pagurus/pagurus-guest",
	"perl -e 'exit(syscall(321, 0, 0, 0) >= 0 ? 0 : 1)'",                           // bpf
	"perl -e 'exit(syscall(323, 0) >= 0 ? 0 : 1)'",                                 // userfaultfd
	"perl -e 'exit(syscall(425, 1, 0) >= 0 ? 0 : 1)'",                              // io_uring_setup
	"perl -e 'exit(syscall(250, 0, 0) >= 0 ? 0 : 1)'",                              // keyctl
	"perl -e 'exit(syscall(56, 0x10000000|17, 0) >= 0 ? 0 : 1)'",                   // clone into a user namespace
	"perl -e 'exit(syscall(435, 0, 0) >= 0 ? 0 : 1)'",                              // clone3, whose flags the filter cannot see
	"perl -e 'exit(syscall(169, 0xfee1dead, 672274793, 0x4321fedc) == 0 ? 0 : 1)'", // reboot
	"perl -e 'exit(socket(S, 40, 1, 0) ? 0 : 1)'",                                  // the machine's own host (AF_VSOCK)
	"perl -e 'exit(socket(S, 38, 5, 0) ? 0 : 1)'",                                  // the kernel's ciphers (AF_ALG)
	"perl -e 'exit(socket(S, 2, 1, 132) ? 0 : 1)'",                                 // SCTP
	"perl -e 'exit(socket(S, 16, 3, 16) ? 0 : 1)'",                                 // generic netlink, which loads modules by name
	"perl -e 'exit(socketpair(A, B, 30, 1, 0) ? 0 : 1)'",                           // TIPC
	"perl -e 'exit(syscall(135, 0x400000) >= 0 ? 0 : 1)'",                          // personality: all memory executable
}

// callsWithPrivilege are calls that this project allows and that container engines allow only with
// a privilege, or depending on their arguments.
var callsWithPrivilege = []string{"chroot", "clone", "get_mempolicy", "set_mempolicy", "mbind", "move_pages"}

// refusedSyscalls lists the numbers of calls that container engines refuse to programs without privileges,
// and of calls that no kernel has.
func refusedSyscalls() (out []string) {
	allowed := map[string]bool{}
	const ofProbes = 336 // uprobe: no filter sees it (Linux 6.18), and it fails but where the kernel has put it
	for _, name := range callsWithPrivilege {
		allowed[name] = true
	}
	for _, rule := range seccomp.DefaultProfile().Syscalls {
		if rule.Action == specs.ActAllow && (rule.Includes == nil || len(rule.Includes.Caps) == 0) {
			for _, name := range rule.Names {
				allowed[name] = true
			}
		}
	}
	for n := range 600 {
		if !allowed[arch.X86_64.SyscallNumbers[n]] && n != ofProbes {
			out = append(out, strconv.Itoa(n))
		}
	}
	return out
}

// calls makes system calls and prints those that exist, with the error. One made by a number
// for 32 bits (int 0x80) ends the program.
const calls = `#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **number)
{
	for (int i = 1; i < count; i++) {
		errno = 0;
		long got = syscall(atol(number[i]), 0, 0, 0, 0, 0, 0);
		if (got != -1 || errno != ENOSYS && (errno != EPERM || atol(number[i]) > 450))
			printf("call %s: %ld, error %d\n", number[i], got, errno);
	}
	for (int wide = 0; wide < 2; wide++) {
		errno = 0;
		if (syscall(0x40000000 | (wide ? SYS_getpid : 512), 0, 0, 0) != -1 || errno != EPERM && errno != ENOSYS)
			printf("a call of x32: error %d\n", errno);
	}
	int status, child = fork();
	if (child == 0) {
		int got = 20; /* getpid */
		__asm__ volatile("int $0x80" : "+a"(got) : : "memory");
		_exit(got > 0 ? 0 : 1);
	}
	waitpid(child, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		printf("a call of 32 bits\n");
	return 0;
}
`

// TestCalls: in a container, what container engines refuse is refused, for root and for a user,
// before and after a move.
func TestCalls(t *testing.T) {
	for _, user := range []uint32{0, jobUser} {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			j := newJobOf(t, "openmpi", 1, user)
			if o := j.do(0, time.Minute, sh("cat >c.c && cc -Wall -o calls c.c"), calls); o.exit.Code != 0 {
				t.Fatalf("compile: %+v", o)
			}
			all := refusedSyscalls()
			if len(all) < 200 {
				t.Fatalf("only %v are refused", all)
			}
			for n := range 2 {
				if n == 1 {
					j.move(0, 1)
				}
				if o := j.do(0, time.Minute, fleet.Program{Args: append([]string{"./calls"}, all...)}, ""); o.stdout != "" || o.exit != (fleet.Exit{}) {
					t.Errorf("after %d moves %s%s: %v", n, o.stdout, o.stderr, o.exit)
				}
			}
		})
	}
}

// TestConfined: a container's root cannot escape, before and after a move, and finds its mounts,
// link and names unchanged.
func TestConfined(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, 0)
	script := "exec 2>/dev/null\n"
	for i, a := range attempts {
		script += fmt.Sprintf("(%s) && echo 'did %d'\n", a, i)
	}
	look := "grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status; cut -d' ' -f4- /proc/self/mountinfo | sort; hostname; cat /proc/net/dev | cut -d: -f1; " +
		"cat /sys/class/net/eth0/ifindex /sys/class/net/eth0/address /sys/class/net/eth0/mtu; ls -l /dev | sed 's/ [A-Z][a-z][a-z] .*:.. / /'; ls /proc | grep -v '[0-9]'; cat /proc/sys/net/mptcp/enabled"
	var before outcome
	for n := range 2 {
		o := j.do(0, time.Minute, sh(script), "")
		for i, a := range attempts {
			if strings.Contains(o.stdout, fmt.Sprintf("did %d\n", i)) {
				t.Errorf("a container's root did: %s", a)
			}
		}
		now := j.do(0, time.Minute, sh(look), "")
		for _, want := range []string{"CapEff:\t00000000000404eb", "CapBnd:\t00000000000404eb", "NoNewPrivs:\t1", "Seccomp:\t2", "guest0\n", "\n2\n02:70:67:00:01:01\n1450\n"} {
			if !strings.Contains(now.stdout, want) {
				t.Errorf("it lacks %q:\n%s", want, now.stdout)
			}
		}
		if n == 0 {
			before = now
			j.move(0, 1)
		} else if a, b := j.settled(before.stdout), j.settled(now.stdout); a != b {
			t.Errorf("before the move:\n%s\nafter it:\n%s", a, b)
		}
	}
	for g := range guests {
		if err := j.inside[g].Shutdown(t.Context()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	}
}

// settled removes the host's details from a guest's view.
func (j *job) settled(text string) string {
	for i := range j.hosts {
		text = strings.ReplaceAll(text, j.hosts[i].Run, "HOST")
	}
	var out []string
	for line := range strings.Lines(text) {
		// The kernel prints mount options in an order of its own.
		if at, _, ok := strings.Cut(line, " - "); ok {
			line = at + "\n"
		}
		out = append(out, line)
	}
	return strings.Join(out, "")
}

// TestFiles: the job's files are the host's, written as the job's user. All other files that a
// program writes move with it, also files without a name.
func TestFiles(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	if err := os.WriteFile(j.files+"/from host", []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := sh(`cat 'from host'; echo shared >shared; echo home >~/x; echo tmp >/tmp/x; ln /tmp/x /tmp/y; echo shm >/dev/shm/x
exec 3<>/tmp/nameless; rm /tmp/nameless; echo nameless >&3
mkfifo /tmp/fifo; sleep 1000 & echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done
kill $! || echo lost a child; cat shared ~/x /tmp/x /tmp/y /dev/shm/x /proc/self/fd/3; [ -p /tmp/fifo ] && ls -i /tmp/x /tmp/y | cut -d' ' -f1 | uniq | wc -l; echo end >>shared`)
	var o outcome
	done := make(chan struct{})
	go func() { o = j.do(0, time.Minute, p, ""); close(done) }()
	until(t, func() bool { _, err := os.Stat(j.files + "/shared"); return err == nil })
	time.Sleep(300 * time.Millisecond)
	j.move(0, 1)
	j.do(0, time.Minute, sh("touch /tmp/go"), "")
	<-done
	if want := "helloready\nshared\nhome\ntmp\ntmp\nshm\nnameless\n1\n"; o.stdout != want || o.exit != (fleet.Exit{}) {
		t.Errorf("it says %q and %q (%v), want %q", o.stdout, o.stderr, o.exit, want)
	}
	info, err := os.Stat(j.files + "/shared")
	text, _ := os.ReadFile(j.files + "/shared")
	if err != nil || fmt.Sprint(owner(info)) != fmt.Sprint([2]uint32{jobUser, jobUser + 1}) || string(text) != "shared\nend\n" {
		t.Errorf("the job's file is %q of %v: %v", text, owner(info), err)
	}
}

// TestExposed: the agent is spared when memory runs out; a guest is not, here and where it arrives.
func TestExposed(t *testing.T) {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("300"), 0); err != nil { // any that is not a guest's: root may not spare itself everywhere
		t.Fatal(err)
	}
	defer os.WriteFile(file, before, 0)
	j := newJobOf(t, "openmpi", 1, jobUser)
	for n := range 2 {
		if n == 1 {
			j.move(0, 1)
		}
		if o := j.do(0, time.Minute, sh("cat /proc/self/oom_score_adj /proc/1/oom_score_adj"), ""); o.stdout != "0\n0\n" {
			t.Errorf("after %d moves: %+v", n, o)
		}
	}
}
