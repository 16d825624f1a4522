package kernelstate

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/act/container/memory"
)

// policy says from which NUMA nodes of a host a thread gets its memory, in the format of
// /proc/PID/numa_maps: "interleave=static", "0-3". The empty policy is the kernel's default.
type policy struct{ Mode, Nodes string }

// Modes of set_mempolicy(2) and their flags, from linux/mempolicy.h.
var (
	modes     = map[string]uint64{"prefer": 1, "bind": 2, "interleave": 3, "local": 4, "prefer (many)": 5, "weighted interleave": 6}
	modeFlags = map[string]uint64{"static": 1 << 15, "relative": 1 << 14, "balancing": 1 << 13}
)

// mostNodes is the size of the mask for set_mempolicy, in bits.
const mostNodes = 1024

// memoryPolicy reads a thread's policy. The first line describes the program's first page, which
// has no policy of its own. For more lines the kernel would examine all pages.
func memoryPolicy(tid int) policy {
	f, err := os.Open(fmt.Sprintf("/proc/%d/task/%d/numa_maps", tid, tid))
	if err != nil {
		return policy{} // the kernel has no NUMA nodes
	}
	defer f.Close()
	line := make([]byte, 64)
	n, _ := f.Read(line)
	return parsePolicy(string(line[:n]))
}

func parsePolicy(line string) policy {
	_, rest, _ := strings.Cut(line, " ")
	for mode := range modes {
		after, ok := strings.CutPrefix(rest, mode)
		if !ok || after != "" && !strings.ContainsRune("=: ", rune(after[0])) || strings.HasPrefix(after, " (") {
			continue // another mode that begins with this word
		}
		word, _, _ := strings.Cut(after, " ")
		flags, nodes, _ := strings.Cut(word, ":")
		return policy{mode + flags, strings.TrimSpace(nodes)}
	}
	return policy{}
}

// remember makes a thread set its policy again, with those of its nodes that this host has.
func (a attributesOf) remember(tid int, c *Container) error {
	online, err := os.ReadFile("/sys/devices/system/node/online")
	if err != nil {
		c.say("thread %d of process %d had a policy for nodes of memory (%s), and this host's kernel has no such nodes", a.Inside, a.Process, a.Memory.Mode)
		return nil
	}
	mode, wanted, err := a.Memory.numbers()
	if err != nil {
		return err
	}
	here, err := nodeMask(strings.TrimSpace(string(online)))
	if err != nil {
		return err
	}
	var lacks, any bool
	mask := make([]byte, mostNodes/8)
	for i := range wanted {
		both := wanted[i] & here[i]
		lacks, any = lacks || both != wanted[i], any || both != 0
		binary.NativeEndian.PutUint64(mask[8*i:], both)
	}
	if lacks {
		c.say("thread %d of process %d had a policy for memory of the nodes %s, and this host has only %s", a.Inside, a.Process, a.Memory.Nodes, strings.TrimSpace(string(online)))
	}
	if lacks && !any {
		return nil
	}
	call := memory.Call{Thread: tid, Number: unix.SYS_SET_MEMPOLICY, Arguments: [3]uint64{mode, 0, mostNodes + 1}, Second: mask}
	if !any {
		call.Arguments[2], call.Second = 0, nil
	}
	c.rest.Calls = append(c.rest.Calls, call)
	return nil
}

// numbers returns the arguments for set_mempolicy.
func (p policy) numbers() (mode uint64, nodes [mostNodes / 64]uint64, err error) {
	word, flags, _ := strings.Cut(p.Mode, "=")
	mode, ok := modes[word]
	if flags != "" {
		for _, flag := range strings.FieldsFunc(flags, func(r rune) bool { return r == '|' || r == ',' }) {
			bit, known := modeFlags[flag]
			mode, ok = mode|bit, ok && known
		}
	}
	if !ok {
		return 0, nodes, fmt.Errorf("its policy for memory, %q, is not known here", p.Mode)
	}
	nodes, err = nodeMask(p.Nodes)
	return mode, nodes, err
}

// nodeMask parses a list such as "0-3,8".
func nodeMask(list string) (mask [mostNodes / 64]uint64, err error) {
	for part := range strings.SplitSeq(list, ",") {
		if part == "" {
			continue
		}
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || from < 0 || to >= mostNodes {
			return mask, fmt.Errorf("%q is not a list of nodes", list)
		}
		for i := from; i <= to; i++ {
			mask[i/64] |= 1 << (i % 64)
		}
	}
	return mask, nil
}
