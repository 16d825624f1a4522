package criu

import (
	"os"
	"testing"
)

// TestStrangeMemory: only mappings of known kinds count as movable.
func TestStrangeMemory(t *testing.T) {
	for path, want := range map[string]bool{
		"": false, "[heap]": false, "[stack]": false, "[vdso]": false, "[vvar]": false, "[vvar_vclock]": false, "[vsyscall]": false,
		"[anon:a name]": false, "[anon_shmem:x]": false, "/usr/lib/libc.so.6": false, "/[aio] (deleted)": false, "/memfd:x (deleted)": false,
		"[uprobes]": true, "socket:[17]": true, "anon_inode:[perf_event]": true, "[of a kernel to come]": true,
	} {
		if m := (mapping{path: path}); m.strange() != want {
			t.Errorf("%q is strange: %v", path, !want)
		}
	}
}

// TestStrangeFiles: the same for files without a name.
func TestStrangeFiles(t *testing.T) {
	s := subject{pid: os.Getpid(), name: "this"}
	for what, movable := range map[string]bool{
		"anon_inode:[eventfd]": true, "anon_inode:[eventpoll]": true, "anon_inode:inotify": true, "anon_inode:[signalfd]": true,
		"anon_inode:[timerfd]": true, "anon_inode:[pidfd]": true, "pipe:[1]": true, "net:[4026531840]": true, "time:[4026531834]": true,
		"anon_inode:[io_uring]": false, "anon_inode:[userfaultfd]": false, "anon_inode:bpf-prog": false, "anon_inode:bpf-map": false,
		"anon_inode:bpf_link": false, "anon_inode:btf": false, "anon_inode:[perf_event]": false, "anon_inode:seccomp notify": false,
		"anon_inode:[landlock-ruleset]": false, "anon_inode:kvm-vm": false, "anon_inode:kvm-vcpu:0": false, "anon_inode:kvm-device": false,
		"anon_inode:[fscontext]": false, "anon_inode:dmabuf": false, "anon_inode:sync_file": false, "anon_inode:[vfio-device]": false,
		"anon_inode:[iommufd]": false, "anon_inode:gpio-event": false, "anon_inode:[mount_notify]": false, "anon_inode:inteldrm": false,
		"anon_inode:[of a kernel to come]": false, "unheard:[1]": false, "mqueue": false,
	} {
		if says := s.odd("0", what); (says == "") != movable {
			t.Errorf("of %q is said %q", what, says)
		}
	}
}
