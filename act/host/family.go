package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Family returns a process and all its descendants. For the first process of a container
// these are all processes of the container. Processes that start meanwhile may be
// missing, and some may have ended.
func Family(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", all[i]))
		if err != nil {
			continue
		}
		for _, t := range threads {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", all[i], t.Name()))
			for _, word := range strings.Fields(string(text)) {
				if child, err := strconv.Atoi(word); err == nil && !slices.Contains(all, child) {
					all = append(all, child)
				}
			}
		}
	}
	return all
}

// Ancestors returns how many ancestors the processes of a family have in it, added up. The
// list is in the order that Family gives: parents first.
func Ancestors(family []int) (n int) {
	above := map[int]int{} // of each: its ancestors and itself
	for _, pid := range family {
		if st, err := ReadStat(pid); err == nil {
			n += above[st.parent]
			above[pid] = above[st.parent] + 1
		}
	}
	return n
}

// Beside returns the processes in the network namespace of a process, itself included. It
// finds those of a partly restored container, whose parents may have ended. For a process
// in this program's own namespace it returns only that process.
func Beside(pid int) []int {
	network := func(pid string) string { at, _ := os.Readlink("/proc/" + pid + "/ns/net"); return at }
	its := network(strconv.Itoa(pid))
	if its == "" || its == network("thread-self") || its == network("1") {
		return []int{pid}
	}
	var all []int
	each(func(other int) {
		if network(strconv.Itoa(other)) == its {
			all = append(all, other)
		}
	})
	return all
}

// Rooted returns the processes whose root is an overlay with upper as its upper folder.
// It only checks processes with a mount namespace of their own, and none of but.
func Rooted(upper string, but map[int]bool) (all []int) {
	word := "upperdir=" + strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`).Replace(upper)
	ours, _ := os.Readlink("/proc/self/ns/mnt")
	each(func(pid int) {
		if but[pid] {
			return
		}
		if at, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); at == ours {
			return // most of a host's processes: reading their mounts takes twenty times as long
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 6 && f[4] == "/" && slices.Contains(strings.Split(f[len(f)-1], ","), word) {
				all = append(all, pid)
				return
			}
		}
	})
	return all
}

// With returns the processes that were started with a setting in their environment, and are none
// of but. The kernel reads a process's environment from its memory, and waits for one that forks while
// its control group has no memory left.
func With(setting string, but map[int]bool) (all []int) {
	each(func(pid int) {
		if but[pid] {
			return
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if slices.Contains(strings.Split(string(text), "\x00"), setting) {
			all = append(all, pid)
		}
	})
	return all
}

// each calls a function with the PID of every process.
func each(f func(pid int)) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			f(pid)
		}
	}
}

// Usage is what a set of processes uses together.
type Usage struct {
	CPU           time.Duration // so far, including children that ended
	ResidentBytes int64
}

// Use returns the sum over the processes.
func Use(pids []int) (u Usage) {
	for _, pid := range pids {
		st, err := ReadStat(pid)
		if err != nil {
			continue
		}
		u.CPU += st.CPU + st.ChildCPU
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		// Pages of files belong to the container's own file systems, or to the image.
		var size, resident, shared int64
		if _, err := fmt.Sscan(string(text), &size, &resident, &shared); err == nil {
			u.ResidentBytes += (resident - shared) * int64(os.Getpagesize())
		}
	}
	return u
}

// Mapped returns the inode numbers of the files that processes have mapped shared.
// Devices are omitted: for a file on an overlay the kernel reports another device here
// than elsewhere.
func Mapped(pids []int) map[uint64]bool {
	out := map[uint64]bool{}
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if !bytes.Contains(lines.Bytes(), []byte("s ")) { // most are not shared, and there may be many
				continue
			}
			if number := shared(lines.Text()); number != 0 {
				out[number] = true
			}
		}
		f.Close()
	}
	return out
}

// shared returns the file's inode number from a line of /proc/PID/maps if the mapping is
// shared.
func shared(line string) uint64 {
	f := strings.Fields(line)
	if len(f) < 6 || len(f[1]) != 4 || f[1][3] != 's' {
		return 0
	}
	number, err := strconv.ParseUint(f[4], 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// States of TCP connections, as in proc_net_tcp.
const (
	synReceived    = "03"
	finWait1       = "04"
	lastAck        = "09"
	listening      = "0A"
	closing        = "0B"
	newSynReceived = "0C"
)

// Unsettled says in words which connection in the network of a process cannot be moved
// now, according to proc_net_tcp. It returns "" if there is none. Such a connection is
// being made, and its listener has not accepted it yet. Or all programs have closed it,
// and its peer has not yet received all data. CRIU dumps only what some program has open.
func Unsettled(pid int) (string, error) {
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if errors.Is(err, os.ErrNotExist) && name == "tcp6" {
			continue
		}
		if err != nil {
			return "", err
		}
		if odd := unsettled(string(text)); odd != "" {
			return odd, nil
		}
	}
	return "", nil
}

// unsettled is Unsettled for the text of one such file. In a line the fourth word is the
// state and the fifth the queues; a listener's queues count connections. The tenth word
// is the inode, 0 if no program has the connection open.
func unsettled(text string) string {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		_, waiting, _ := strings.Cut(f[4], ":")
		switch state := f[3]; state {
		case synReceived, newSynReceived:
			return "a connection is being made"
		case listening:
			if strings.Trim(waiting, "0") != "" {
				return "a connection waits to be taken by who listens"
			}
		case finWait1, lastAck, closing:
			if f[9] == "0" {
				return "a connection that was closed has not brought its peer all that was written to it: the peer does not read"
			}
		}
	}
	return ""
}

// Alive counts the processes that have not ended.
func Alive(pids []int) (n int) {
	for _, pid := range pids {
		if st, err := ReadStat(pid); err == nil && st.state != 'Z' && st.state != 'X' {
			n++
		}
	}
	return n
}

// Spare makes the kernel kill other processes first when memory runs out. Processes that
// this one starts later are spared, too.
func Spare(pid int) { outOfMemory(strconv.Itoa(pid), "-1000") }

// Expose ends that a process is spared, as it is by inheritance if the service manager spares the agent.
func Expose(pid int) { outOfMemory(strconv.Itoa(pid), "0") }

// ExposeSelf is Expose of this process, also where /proc is that of other processes' numbers.
func ExposeSelf() { outOfMemory("self", "0") }

func outOfMemory(process, score string) {
	_ = os.WriteFile("/proc/"+process+"/oom_score_adj", []byte(score), 0) // in many sandboxes root may not
}
