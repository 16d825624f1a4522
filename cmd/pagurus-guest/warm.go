package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

const (
	warmWord  = "pagurus.warm" // on the kernel's command line of a guest that becomes a snapshot
	helloPath = "/usr/lib/pagurus/hello"
	warmLimit = 20 * time.Second // of one program, on a busy host
)

// warmed reports whether this guest becomes a snapshot.
func warmed() bool { return onCommandLine(warmWord) }

// onCommandLine reports whether a word is on the kernel's command line.
func onCommandLine(word string) bool {
	line, err := os.ReadFile("/proc/cmdline")
	return err == nil && slices.Contains(strings.Fields(string(line)), word)
}

// warm runs the shortest MPI job in this guest alone, so that snapshots have every job's
// files in memory. Its files are removed, and it may fail.
func warm(c *children) {
	defer hideBootID()()
	home := account{name: "root", dir: "/root", shell: "/bin/sh"}
	env := slices.DeleteFunc(mpiEnv(fleet.Setup{}), func(v string) bool {
		return strings.Contains(v, "if_include") || strings.Contains(strings.ToLower(v), "host_file") || strings.Contains(v, "hostfile")
	})
	env = merge(ownEnv(home), env)
	for _, args := range [][]string{
		{mpirun(""), "-n", "1", "env", "LD_PRELOAD=" + preloaded(), helloPath},
		{"prted", "--version"}, // of Open MPI 5 on the other guests
		{"orted", "--version"}, // of Open MPI 4
	} {
		runQuietly(c, command{path: selfExe, args: execArgs("/", args[0], args), env: env, dir: "/"})
	}
	for _, pattern := range []string{"/tmp/*", "/dev/shm/*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			os.RemoveAll(path)
		}
	}
}

// bootID is made by the kernel when first read, and stays. Libraries take it for a machine's
// ID, so it must not be made before the snapshot.
const bootID = "/proc/sys/kernel/random/boot_id"

// hideBootID covers it with another until show is called.
func hideBootID() (show func()) {
	const other = runDir + "/boot_id"
	err := os.WriteFile(other, []byte("00000000-0000-4000-8000-000000000000\n"), 0o444)
	if err == nil {
		err = unix.Mount(other, bootID, "", unix.MS_BIND, "")
	}
	if err != nil {
		say("hiding the boot ID: %v", err)
	}
	return func() {
		unix.Unmount(bootID, unix.MNT_DETACH)
		os.Remove(other)
	}
}

// runQuietly runs a command to its end, or to warmLimit.
func runQuietly(c *children, cmd command) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	cmd.files = [3]*os.File{null, null, null}
	pid, ended, err := c.start(cmd)
	if err != nil {
		return
	}
	select {
	case <-ended:
	case <-time.After(warmLimit):
		c.signal(pid, unix.SIGKILL)
		<-ended
	}
}
