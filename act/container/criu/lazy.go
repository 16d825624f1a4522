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

// LazyPager runs `criu lazy-pages`. It fetches the pages of a restored container when
// they are touched, and otherwise one page after the other, until all have arrived.
type LazyPager struct {
	criu   Criu
	cmd    *exec.Cmd
	images string
	said   *os.File
	ended  chan struct{}
	err    error // valid after ended
}

// The pager's files among the images.
const (
	// LazyPagerLog is its log.
	LazyPagerLog = "lazy-pages.log"
	// lazyPagerSocket is the socket at which CRIU looks for the pager.
	lazyPagerSocket = "lazy-pages.socket"
)

// lazyPagerLimit is how long the pager may take until it listens.
const lazyPagerLimit = 10 * time.Second

// StartLazyPager starts a pager for images, from which a lazy restore will be made. It
// receives the pages through socket. other is a descriptor of the socket's other end.
// While the pager also holds it, the pager waits for ever if the sending process ends.
// The pager does not end with the caller, because the container depends on it until all
// memory has arrived. The caller keeps both files.
func (c Criu) StartLazyPager(ctx context.Context, images string, socket, other *os.File) (*LazyPager, error) {
	return c.startLazyPager(ctx, images, []*os.File{socket, other}, "--page-server", "--ps-socket", "3")
}

// PID returns the pager's PID.
func (p *LazyPager) PID() int { return p.cmd.Process.Pid }

func (c Criu) startLazyPager(ctx context.Context, images string, files []*os.File, more ...string) (p *LazyPager, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start the lazy pager for %s: %w", images, err)
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
		// The pager reports when it listens. Its socket file exists before that.
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

// Wait waits until all memory is in place; then the container depends on no other
// process. It returns an error if the pager ended earlier. In that case the container's
// processes read zeros where memory is missing, without any error, unless another process
// holds their userfaultfds, too.
func (p *LazyPager) Wait() error {
	<-p.ended
	return p.err
}

// Ended returns a channel that is closed when Wait would return.
func (p *LazyPager) Ended() <-chan struct{} { return p.ended }

// Close ends the pager. If its memory is incomplete, the container must be ended first.
func (p *LazyPager) Close() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the lazy pager for %s: %w", p.images, err)
	}
	<-p.ended
	return nil
}
