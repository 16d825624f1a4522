package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/freemem"
)

// emptyName is the guest agent's name when it empties free memory, in a process of its own, which gives all back as it ends.
const emptyName = "pagurus-empty"

// emptyLimit is how long that may take. What is not empty by then is sent.
const emptyLimit = time.Second

// empty fills free memory with zeroes.
func (m *member) empty(ctx context.Context, bytes int64) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	pid, ended, err := m.children.start(command{
		path: "/proc/self/exe", args: []string{emptyName, strconv.FormatInt(bytes, 10)}, files: [3]*os.File{null, null, null},
	})
	if err != nil {
		return err
	}
	select {
	case exit := <-ended:
		if exit.Code != 0 {
			return fmt.Errorf("it ended with %d %s", exit.Code, exit.Signal)
		}
		return nil
	case <-ctx.Done():
		m.children.signal(pid, unix.SIGKILL)
		return ctx.Err()
	}
}

// emptyFree is the process that does it. If memory gets short it ends before any program of the job.
func emptyFree(args []string) int {
	if len(args) != 1 {
		return 2
	}
	bytes, err := strconv.ParseInt(args[0], 10, 64)
	if err == nil {
		err = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	}
	if err == nil {
		_, _, err = freemem.Zero(bytes, time.Now().Add(emptyLimit))
	}
	if err != nil {
		return 1
	}
	return 0
}
