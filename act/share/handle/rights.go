package handle

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rootsServer are the capabilities of a server of a job of root: to act as any user of the guests. It has none to
// open by handle or to look into other processes.
var rootsServer = []int{unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_DAC_OVERRIDE}

// Rights are the capabilities that a guard has to have: to find the file of a handle, and to open the user's own file whatever its mode
// is. That of a job of root has what it gives to its server, and what it takes to read the memory of a server that has acted as another user.
func Rights(uid uint32) []int {
	if uid != 0 {
		return []int{unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE}
	}
	return append([]int{unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE}, rootsServer...)
}

// held are a guard's capabilities, in one of its threads. They are used for one call at a time.
type held struct {
	permitted uint64
	always    uint64 // those of them that count between calls
	roots     bool   // the job is root's
}

func bits(caps ...int) (b uint64) {
	for _, c := range caps {
		b |= 1 << c
	}
	return b
}

// rights are those of this thread.
func rights() (h held, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return h, fmt.Errorf("ask for the guard's rights: %w", err)
	}
	h.permitted = uint64(sets[1].Permitted)<<32 | uint64(sets[0].Permitted)
	h.roots = os.Getuid() == 0
	if h.roots {
		h.always = bits(unix.CAP_SYS_PTRACE)
	}
	return h, nil
}

// keepFromOthers keeps the rights from programs that this thread starts, and this thread from using them until it says so.
func (h held) keepFromOthers() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("keep the guard's rights from the server: %w", err)
	}
	return h.use()
}

// use makes these of the guard's rights this thread's effective ones.
func (h held) use(caps ...int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	effective := (h.always | bits(caps...)) & h.permitted
	sets := [2]unix.CapUserData{
		{Effective: uint32(effective), Permitted: uint32(h.permitted)},
		{Effective: uint32(effective >> 32), Permitted: uint32(h.permitted >> 32)},
	}
	return unix.Capset(&header, &sets[0])
}

// with does something with some of the rights.
func (h held) with(do func() error, caps ...int) error {
	if err := h.use(caps...); err != nil {
		return err
	}
	err := do()
	if wrong := h.use(); wrong != nil {
		panic(wrong) // a thread that has more rights than it should
	}
	return err
}

// caller is as whom a thread of the server acts.
type caller struct {
	uid, gid int
	groups   []uint32
	rights   uint64
}

// callerOf asks the kernel.
func callerOf(thread uint32) (c caller, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return c, err
	}
	const actsAs = 3 // after the real, effective and saved one
	seen := 0
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		f := strings.Fields(value)
		var wrong error
		switch {
		case name == "Uid" && len(f) > actsAs:
			c.uid, wrong = strconv.Atoi(f[actsAs])
		case name == "Gid" && len(f) > actsAs:
			c.gid, wrong = strconv.Atoi(f[actsAs])
		case name == "CapEff" && len(f) > 0:
			c.rights, wrong = strconv.ParseUint(f[0], 16, 64)
		case name == "Groups":
			for _, g := range f {
				n, bad := strconv.ParseUint(g, 10, 32)
				c.groups, wrong = append(c.groups, uint32(n)), errors.Join(wrong, bad)
			}
		default:
			continue
		}
		seen++
		err = errors.Join(err, wrong)
	}
	const facts = 4
	if err == nil && seen != facts {
		err = fmt.Errorf("the kernel says %d of %d facts about thread %d", seen, facts, thread)
	}
	return c, err
}

// as makes this thread act as a thread of a server of root's does, which may act as a user of the guests.
func (h *held) as(c caller) error {
	err := h.with(func() error { return c.become() }, unix.CAP_SETUID, unix.CAP_SETGID)
	if err != nil {
		return err
	}
	h.always |= c.rights
	return h.use()
}

// back makes it act as itself again.
func (h *held) back() {
	h.always = bits(unix.CAP_SYS_PTRACE)
	if err := h.with(func() error { return caller{}.become() }, unix.CAP_SETUID, unix.CAP_SETGID); err != nil {
		panic(err) // a thread that acts as another user than it should
	}
}

// become changes the user of this thread alone, for files.
func (c caller) become() error {
	var first unsafe.Pointer
	if len(c.groups) > 0 {
		first = unsafe.Pointer(&c.groups[0])
	}
	// Package syscall would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(c.groups)), uintptr(first), 0); errno != 0 {
		return errno
	}
	const ask = -1 // no user: changes nothing, and says who it is
	for _, id := range []struct {
		want int
		set  func(int) (int, error)
	}{{c.gid, unix.SetfsgidRetGid}, {c.uid, unix.SetfsuidRetUid}} {
		if _, err := id.set(id.want); err != nil {
			return err
		}
		if now, err := id.set(ask); err != nil || now != id.want {
			return fmt.Errorf("act as user or group %d: still %d, %w", id.want, now, errors.Join(err, unix.EPERM))
		}
	}
	return nil
}
