package container_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// mostDowntime is how long a guest may be suspended for a move that is refused or waits. CRIU
// alone took ten seconds for some.
const mostDowntime = time.Second

// TestRefused: obstacles are reported beforehand by name. A move that is tried anyway is refused
// at once with the same reason, before the guest is frozen. The program does not notice.
func TestRefused(t *testing.T) {
	refused := map[string]string{
		"packets":            "has a pipe in packet mode, as descriptor 4, which cannot move: let it open the pipe without O_DIRECT",
		"first_gone":         "goes on although its first thread has ended, and cannot move so: let that thread wait for the others (pthread_join)",
		"message_queue":      "the container has the POSIX message queue /queue, which cannot move: let the program close and unlink it, or use queues of System V (msgget) or sockets",
		"queue_left":         "the container has the POSIX message queue /left, which cannot move",
		"first_thread_timer": "has a timer that signals its first thread alone (SIGEV_THREAD_ID), which cannot move",
		"traced":             "is being debugged: end the debugger, refused (process ",
		"thread_handle":      "has a handle on a thread, as descriptor 3, which cannot move: let it open one on the process, without PIDFD_THREAD",
		"listener":           "uses anon_inode:seccomp notify, which belongs to this machine and cannot move",
		"shared_memory":      "and is not a thread of that (clone(2)), which cannot move: let the program make threads, or processes by fork(2)",
		"shared_folder":      "shares its working folder with refused (process ",
	}
	j := newJobOf(t, "openmpi", 1, jobUser)
	for i, name := range j.compileState("refused") {
		want, ok := refused[name]
		if !ok {
			continue // TestVfork and TestRoot test those
		}
		delete(refused, name)
		t.Run(name, func(t *testing.T) {
			end := j.beginCase("refused", name)
			found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID)
			if err != nil || !slices.ContainsFunc(found, func(says string) bool { return strings.Contains(says, want) }) {
				t.Errorf("Obstacles says %q, %v", found, err)
			}
			begun := time.Now()
			if _, err := j.tryMove(0, i+1); err == nil || len(found) == 0 || !strings.HasSuffix(err.Error(), found[0]) {
				t.Errorf("the move says %v, not %q", err, found)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("to refuse it took %s", took)
			}
			if o := end(); o.exit.Code != 0 || o.stdout != "" {
				t.Errorf("afterwards: %+v", o)
			}
		})
	}
	if len(refused) > 0 {
		t.Errorf("there are no programs for %v", refused)
	}
}

// TestVfork: a program that waits for a child by vfork(2) cannot be stopped until the child has
// ended. A move waits for it, and tries again, while the guest runs.
func TestVfork(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	j.compileState("refused")
	t.Run("of a moment", func(t *testing.T) {
		end := j.beginCase("refused", "vforks")
		for n := range 4 {
			if p := j.move(0, n+1); p.Downtime > mostDowntime {
				t.Errorf("it was suspended for %s", p.Downtime)
			}
		}
		if o := end(); o.exit.Code != 0 || o.stdout != "" {
			t.Errorf("afterwards: %+v", o)
		}
	})
	t.Run("for long", func(t *testing.T) {
		end := j.beginCase("refused", "vforked")
		_, err := j.tryMove(0, 5)
		const want = "waits for a child that has its memory until that runs another program or ends (vfork(2))"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the move says %v", err)
		}
		if o := end(); o.exit.Code != 0 || o.stdout != "" {
			t.Errorf("afterwards: %+v", o)
		}
	})
}

// TestRoot: state that only a container's root can have moves: another root than the
// container's, also with files open beyond it, and threads with their own credentials.
func TestRoot(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, 0)
	j.compileState("refused")
	for n, name := range []string{"chrooted", "terminal", "capabilities"} {
		t.Run(name, func(t *testing.T) {
			end := j.beginCase("refused", name)
			found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID)
			if err != nil || len(found) > 0 {
				t.Errorf("Obstacles says %q, %v", found, err)
			}
			j.move(0, n+1)
			if o := end(); o.exit.Code != 0 || o.stdout != "" {
				t.Errorf("afterwards: %+v", o)
			}
		})
	}
}
