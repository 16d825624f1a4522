package criu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// LazyPager fetches the memory of a restored container when it is touched, and
// otherwise one page after the other, until all is there.
type LazyPager struct {
	criu   Criu
	cmd    *exec.Cmd
	images string
	said   *os.File
	ended  chan struct{}
	err    error // after ended
}

// The pager's files among the images.
const (
	// LazyPagerLog is its log.
	LazyPagerLog = "lazy-pages.log"
	// lazyPagerSocket is where CRIU looks for it.
	lazyPagerSocket = "lazy-pages.socket"
)

// lazyPagerLimit is how long the pager may take until it listens.
const lazyPagerLimit = 10 * time.Second

// StartLazyPager starts one for images, from which a lazy restore is to be made, and memory
// that is handed out at the other end of a socket. other is a descriptor of that end: as
// long as the pager has it, too, it waits for ever if whoever hands out memory ends. It
// does not end with the caller, since the container depends on it until all its memory
// has come. Both files stay the caller's.
func (c Criu) StartLazyPager(ctx context.Context, images string, socket, other *os.File) (*LazyPager, error) {
	return c.startLazyPager(ctx, images, []*os.File{socket, other}, "--page-server", "--ps-socket", "3")
}

// PID is the pager's number.
func (p *LazyPager) PID() int { return p.cmd.Process.Pid }

func (c Criu) startLazyPager(ctx context.Context, images string, files []*os.File, more ...string) (p *LazyPager, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start what fetches memory for %s: %w", images, err)
		}
	}()
	said, err := Memory("criu's errors")
	if err != nil {
		return nil, err
	}
	p = &LazyPager{criu: c, images: images, said: said, ended: make(chan struct{})}
	args := append([]string{"lazy-pages", "--images-dir", images, "--work-dir", images, "--log-file", LazyPagerLog, "-v2"}, more...)
	socket := filepath.Join(images, lazyPagerSocket)
	for _, old := range []string{socket, filepath.Join(images, LazyPagerLog)} {
		if err := ignoreAbsent(os.Remove(old)); err != nil {
			said.Close()
			return nil, err
		}
	}
	listens, told, err := os.Pipe()
	if err != nil {
		said.Close()
		return nil, err
	}
	defer told.Close()
	files = append(files, told)
	p.cmd = exec.Command(c.Path, append(args, "--status-fd", strconv.Itoa(2+len(files)))...)
	p.cmd.Dir, p.cmd.Stderr, p.cmd.Env = "/", said, []string{"PATH=" + programFolders, "LC_ALL=C"}
	p.cmd.SysProcAttr, p.cmd.ExtraFiles = &syscall.SysProcAttr{Setsid: true}, files
	if err := p.cmd.Start(); err != nil {
		listens.Close()
		said.Close()
		return nil, err
	}
	go p.watch()
	ready := make(chan struct{})
	go func() {
		defer listens.Close()
		// It says so when it listens: that its socket is there is too early.
		if n, _ := listens.Read(make([]byte, 1)); n == 1 {
			close(ready)
		}
	}()
	ctx, stop := context.WithTimeoutCause(ctx, lazyPagerLimit, fmt.Errorf("it does not listen within %s", lazyPagerLimit))
	defer stop()
	select {
	case <-ready:
		return p, nil
	case <-p.ended:
		return nil, p.Wait()
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), p.Close())
	}
}

// watch waits for the pager's end.
func (p *LazyPager) watch() {
	defer close(p.ended)
	if err := p.cmd.Wait(); err != nil {
		log := readMost(filepath.Join(p.images, LazyPagerLog))
		if _, err := p.said.Seek(0, io.SeekStart); err == nil {
			early, _ := io.ReadAll(io.LimitReader(p.said, mostLog))
			log = append(early, log...)
		}
		sentence, _ := explain(log, "")
		p.err = fmt.Errorf("fetch memory for %s: %w: %s", p.images, err, sentence)
	}
	p.said.Close()
}

// Wait waits until all memory is there: the container then depends on nobody. It is an
// error if the pager ended before. Unless somebody else has its userfaultfds, too, the
// container's processes then find zeros where memory is missing, and nothing tells them.
func (p *LazyPager) Wait() error {
	<-p.ended
	return p.err
}

// Ended is closed when Wait would return.
func (p *LazyPager) Ended() <-chan struct{} { return p.ended }

// Close ends the pager. A container whose memory is not all there is to be ended before.
func (p *LazyPager) Close() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end what fetches memory for %s: %w", p.images, err)
	}
	<-p.ended
	return nil
}
