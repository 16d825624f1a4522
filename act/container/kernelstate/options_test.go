package kernelstate

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOptionOfANewerKernel: an option that a program has set, and that the target's kernel does not
// know, is not lost silently. One that it has not set matters to nobody.
func TestOptionOfANewerKernel(t *testing.T) {
	usual := Options
	with := func(all []Option) { Options = all; suiting.Clear() }
	t.Cleanup(func() { with(usual) })
	with(append(slices.Clone(usual), Option{SocketLevel, 4095, "SO_OF_TOMORROW", Same, Carried, ""}))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	k := notedKind{kind{Family: unix.AF_INET, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP}, nil}
	if k.Options, err = newSocket(k.Kind); err != nil {
		t.Fatal(err)
	}
	c := &Container{Processes: []Process{{PID: os.Getpid(), Inside: 1}}}
	one := binary.NativeEndian.AppendUint32(nil, 1)
	known := map[string][]byte{"1/9": one} // SO_KEEPALIVE
	k.Options["1/4095"] = one
	if err := (notedSocket{Process: 1, FD: fd, Options: known}).restore(c, k); err != nil || getInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 1 {
		t.Errorf("not set by the program: %v", err)
	}
	known["1/4095"] = one
	err = notedSocket{Process: 1, FD: fd, Options: known}.restore(c, k)
	if err == nil || !strings.Contains(err.Error(), "set SO_OF_TOMORROW of descriptor") || !strings.Contains(err.Error(), "does not know it: move") {
		t.Errorf("set by the program: %v", err)
	}
}
