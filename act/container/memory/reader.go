package memory

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// readBytes is how much is read at a time. It stays in the processor's cache between
	// reading and sending.
	readBytes = 1 << 20
	// mostRanges is how many ranges the kernel reads at a time.
	mostRanges = 512
)

// reader reads the memory of one process, many ranges at a time.
type reader struct {
	process *process
	memory  *os.File // /proc/PID/mem, opened when process_vm_readv cannot read a page
	ranges  []unix.RemoteIovec
	size    int
	buffer  []byte
}

// of selects the process to read.
func (r *reader) of(p *process) {
	r.process, r.ranges, r.size = p, r.ranges[:0], 0
}

func (r *reader) close() {
	if r.memory != nil {
		_ = r.memory.Close()
		r.memory = nil
	}
}

func (r *reader) full() bool { return r.size == len(r.buffer) || len(r.ranges) == mostRanges }

// add queues a range, or as much of it as fits, and returns its end.
func (r *reader) add(from, to uint64) uint64 {
	to = min(to, from+uint64(len(r.buffer)-r.size))
	r.ranges = append(r.ranges, unix.RemoteIovec{Base: uintptr(from), Len: int(to - from)})
	r.size += int(to - from)
	return to
}

// read reads the queued ranges and passes each to take. It skips unreadable pages: they
// are gone, or guards.
func (r *reader) read(take func(address uint64, content []byte) error) error {
	defer func() { r.ranges, r.size = r.ranges[:0], 0 }()
	for todo := r.ranges; len(todo) > 0; {
		size := 0
		for _, v := range todo {
			size += v.Len
		}
		n, err := unix.ProcessVMReadv(r.process.pid, []unix.Iovec{iovec(r.buffer[:size])}, todo, 0)
		if err != nil && !errors.Is(err, unix.EFAULT) {
			if errors.Is(err, unix.ESRCH) {
				return errEnded
			}
			return fmt.Errorf("read memory of process %d: %w", r.process.pid, err)
		}
		from := 0
		for n >= PageBytes {
			part := min(n, todo[0].Len) / PageBytes * PageBytes
			if err := take(uint64(todo[0].Base), r.buffer[from:from+part]); err != nil {
				return err
			}
			from, n, size = from+part, n-part, size-part
			todo = skip(todo, part)
		}
		if len(todo) == 0 {
			break
		}
		// The first remaining page could not be read.
		content := r.buffer[:PageBytes]
		if r.force(content, uint64(todo[0].Base)) {
			if err := take(uint64(todo[0].Base), content); err != nil {
				return err
			}
		}
		todo = skip(todo, PageBytes)
	}
	return nil
}

// skip removes the first bytes of the ranges, at most the first range.
func skip(list []unix.RemoteIovec, bytes int) []unix.RemoteIovec {
	list[0].Base, list[0].Len = list[0].Base+uintptr(bytes), list[0].Len-bytes
	if list[0].Len == 0 {
		return list[1:]
	}
	return list
}

// force reads a page that the process itself may not read.
func (r *reader) force(content []byte, at uint64) bool {
	if r.memory == nil {
		var err error
		if r.memory, err = r.process.folder.open("mem"); err != nil {
			return false
		}
	}
	n, _ := r.memory.ReadAt(content, int64(at))
	return n == len(content)
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}

var zeros [PageBytes]byte

// runs divides whole pages into runs that are zero and runs that are not.
func runs(content []byte, take func(zero bool, from, to int) error) error {
	for from := 0; from < len(content); {
		zero := bytes.Equal(content[from:from+PageBytes], zeros[:])
		to := from + PageBytes
		for to < len(content) && bytes.Equal(content[to:to+PageBytes], zeros[:]) == zero {
			to += PageBytes
		}
		if err := take(zero, from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}
