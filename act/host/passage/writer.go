package passage

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"pagurus/act/host"
)

// Writer is a process that writes what comes through a pipe to a file: QEMU may write only small files itself, and
// an agent with CAP_SYS_RESOURCE, which could change that, is not everywhere. It outlives the agent, and ends with the pipe.
type Writer struct {
	Shim   string   // path of pagurus-shim
	UID    uint32   // the guest's user, as whom it runs
	Folder string   // the guest's, in which it is found
	From   *os.File // the end of the pipe
	To     *os.File
	Log    *os.File // gets a Written, or why there is none
}

// Written is what a writer has written.
type Written struct {
	Bytes int64  `json:"bytes"`
	Sum   uint32 `json:"crc32c"` // against damage, not against malice
}

const (
	writerName  = "pagurus-writer"
	writerFrom  = 3 // the descriptor of the pipe in the writer, and the next is that of the file
	writeAtOnce = 1 << 20
)

// Start starts the writer, which has copies of all files. After an error none runs.
func (w Writer) Start() (host.Process, error) {
	cmd := &exec.Cmd{
		Path: w.Shim, Args: []string{writerName, strconv.FormatUint(uint64(w.UID), 10)}, Env: []string{}, Dir: w.Folder,
		Stdout: w.Log, Stderr: w.Log, ExtraFiles: []*os.File{w.From, w.To}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return host.Process{}, fmt.Errorf("start a writer: %w", err)
	}
	p, err := host.Find(cmd.Process.Pid)
	if err != nil {
		return p, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	go func() { _ = cmd.Wait() }() // after the agent's end another reaps it
	return p, nil
}

// write is the process.
func write(args []string) error {
	if len(args) != 1 {
		return errors.New("a writer is started by the agent")
	}
	uid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	from, to := os.NewFile(writerFrom, "pipe"), os.NewFile(writerFrom+1, "file")
	if err := confine(uid); err != nil {
		return err
	}
	w, err := drain(from, to)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(w)
}

// drain writes all that comes. When it cannot write, it only reads on to the end: QEMU crashes if the pipe breaks at
// certain moments, and its guest with it.
func drain(from io.Reader, to io.Writer) (Written, error) {
	h := crc32.New(SumTable)
	// Only a reader and a writer: a file would have the kernel copy what has to be summed.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(to, h)}, struct{ io.Reader }{from}, make([]byte, writeAtOnce))
	if err != nil {
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{from})
	}
	return Written{Bytes: n, Sum: h.Sum32()}, err
}

// SumTable is that of Written's sum, which processors compute.
var SumTable = crc32.MakeTable(crc32.Castagnoli)
