// Command pagurus-guest is the guest agent: the first process of a guest.
//
// In a virtual machine the kernel starts it as /init from the initramfs. It loads modules,
// mounts the image with a writable layer in memory, and then serves the host's agent over
// the guest link. It sets the guest up for its job, runs programs, keeps their input and
// output by offset, and starts the remote parts of MPI jobs for its peers, so that no sshd
// is needed. The same binary is the remote-start command ("rsh"), the last step before a
// program ("pagurus-exec"), and what empties free memory before a copy ("pagurus-empty").
//
// Programs of the job steer it through a socket (steer.go): the guest agent keeps what they say, and the host asks for it.
//
// In a container there is nothing to load or mount. Namespaces, files, network and the job's
// files are made from outside, at each host, and the link is a socket.
//
// It is resident in every guest, so it stays small and asleep: no HTTP, no netlink library,
// no timer while idle. As the first process it never exits; it reports errors to the host.
//
// It must not know hosts, moves or the controller: it passes on what programs ask of them. Its
// tests run programs on this machine, and the whole guest in QEMU under software emulation,
// with Open MPI 4 and 5 and MPICH.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"pagurus/act/libpagurus"
)

// Paths in a running guest.
const (
	runDir    = "/run/pagurus"
	selfPath  = runDir + "/pagurus-guest"
	rshPath   = runDir + "/rsh"
	hostsOMPI = runDir + "/hosts.openmpi"
	hostsPICH = runDir + "/hosts.mpich"
	peersPath = runDir + "/peers"
	tracePath = "/usr/lib/pagurus/libpagurus-trace.so"
	waitPath  = "/usr/lib/pagurus/libpagurus-wait.so" // the same for emulated guests
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "rsh":
		os.Exit(remoteShell(os.Args[1:]))
	case execName:
		os.Exit(execProgram(os.Args[1:]))
	case emptyName:
		os.Exit(emptyFree(os.Args[1:]))
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "pagurus-guest is the first process of a guest; pagurus starts it, people do not")
		os.Exit(2)
	}
	// One thread suffices for its Go code, and each further one costs memory. The heap is
	// small, so frequent collection is cheap.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(50)
	firstProcess()
}

// firstProcess never returns.
func firstProcess() {
	ignoreSignals()
	if contained {
		if err := prepareContainer(); err != nil {
			say("cannot prepare the container: %v", err)
			os.Exit(1) // the container ends with it
		}
	} else if err := Boot(say); err != nil {
		say("cannot boot: %v", err)
		PowerOff()
	} else if err := furnish(); err != nil {
		say("cannot boot: %v", err)
		PowerOff()
	}
	children := newChildren()
	go children.reap()
	if warmed() {
		warm(children)
	}
	if !contained {
		go keepRoom("/")
	}
	m := newMember(children, "/")
	if err := errors.Join(libpagurus.Place("/"), m.steering.listen(steerPath)); err != nil {
		say("programs cannot steer their job: %v", err)
	}
	if contained {
		serveSocket(m)
	}
	servePort(m)
}

// say writes a line to the console, which the host keeps in a file.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "pagurus-guest: "+format+"\n", args...)
}
