package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pagurus/act/guestnet"
	"pagurus/act/ranks"
	"pagurus/fleet"
)

// member is the guest as a member of its job. It satisfies guestlink.Server for the host's
// agent.
type member struct {
	children *children
	root     string // "/", or a test's folder for /etc and others

	mu       sync.Mutex
	linked   bool              // set by the first setup
	unlinked bool              // some links are not made
	setting  *setting          // the last setup, done or under way
	shares   []fleet.Directory // the job's directories, mounted now or before
	home     account
	remote   *remoteServer
	programs map[string]*program

	told     told
	steering *steering
}

// setting is one setup, under way or done.
type setting struct {
	setup fleet.Setup
	done  chan struct{}
	err   error // valid when done is closed
}

func newMember(c *children, root string) *member {
	return &member{children: c, root: root, programs: map[string]*program{}, steering: newSteering()}
}

// clockTolerance is the allowed difference between the guest's clock and the host's. The
// link's delay is below it, and a step of the clock is worse.
const clockTolerance = 50 * time.Millisecond

// Setup sets the guest up for its job. The same setup again only sets the clock and adds the
// seed. After an error part of it is done; call again.
func (m *member) Setup(ctx context.Context, s fleet.Setup) error {
	if !contained {
		setClock(s.Clock)
		stir(s.Seed)
	}
	s.Clock, s.Seed = time.Time{}, nil
	for {
		m.mu.Lock()
		now := m.setting
		if now == nil || now.over() && (now.err != nil || !reflect.DeepEqual(now.setup, s)) {
			now = &setting{setup: s, done: make(chan struct{})}
			m.setting = now
			go func() {
				// Not bound to ctx: the call may be repeated meanwhile and then waits for
				// this one.
				now.err = m.join(s)
				close(now.done)
			}()
		}
		m.mu.Unlock()
		select {
		case <-now.done:
			if now.err != nil || reflect.DeepEqual(now.setup, s) {
				return now.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *setting) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// join does all of a setup.
func (m *member) join(s fleet.Setup) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bug in the guest agent's setup: %v", p)
		}
	}()
	if err := m.writeNames(s); err != nil {
		return fmt.Errorf("naming the guest: %w", err)
	}
	if !contained {
		if err := guestnet.Join(s); err != nil {
			return fmt.Errorf("joining the job's network: %w", err)
		}
		if err := mountShares(s); err != nil {
			return fmt.Errorf("mounting the job's files: %w", err)
		}
	}
	m.link(s)
	home, err := m.enlist(s)
	if err != nil {
		return fmt.Errorf("making the job's user: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.home = home
	if m.remote != nil {
		m.remote.close()
	}
	m.remote, err = listenRemote(m.children, s, home, m.deliver)
	return err
}

// setClock sets the guest's clock if it differs.
func setClock(t time.Time) {
	if t.IsZero() {
		return
	}
	if off := time.Since(t); off.Abs() > clockTolerance {
		tv := unix.NsecToTimeval(t.UnixNano())
		if err := unix.Settimeofday(&tv); err != nil {
			say("setting the clock: %v", err)
		}
	}
}

// stir adds a seed to the kernel's random numbers: guests from one snapshot would all draw
// the same. See random(4).
func stir(seed []byte) {
	if len(seed) == 0 {
		return
	}
	pool, err := os.OpenFile("/dev/random", os.O_WRONLY, 0)
	if err == nil {
		defer pool.Close()
		err = addEntropy(int(pool.Fd()), seed)
	}
	if err != nil {
		say("stirring the random numbers: %v", err)
	}
}

// maxSeed is more than the kernel can use.
const maxSeed = 64

func addEntropy(fd int, seed []byte) error {
	var p struct { // struct rand_pool_info
		bits, bytes int32
		seed        [maxSeed]byte
	}
	n := copy(p.seed[:], seed)
	p.bits, p.bytes = int32(8*n), int32(n)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&p)))
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDRESEEDCRNG, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// Launch starts a program, once for its ID. An error of the program itself is written to its
// stderr, and it ends with a shell's exit code. After an error it has not been launched.
func (m *member) Launch(_ context.Context, p fleet.Program) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.programs[p.ID] != nil {
		return nil
	}
	if m.setting == nil || !m.setting.over() || m.setting.err != nil {
		return errors.New("guest is not set up yet, so nothing can be launched in it")
	}
	if len(p.Args) == 0 || p.Args[0] == "" {
		return errors.New("no program is named")
	}
	for _, s := range append(append([]string{p.Dir}, p.Args...), p.Env...) {
		if strings.ContainsRune(s, 0) {
			return errors.New("arguments, environment and directory cannot contain a zero byte")
		}
	}
	if m.unlinked { // the name may lead nowhere
		p.Env = slices.DeleteFunc(slices.Clone(p.Env), isDirectory)
	}
	args, check, env := plan(m.setting.setup, m.home, p)
	started, err := launch(m.children, command{
		path: selfExe, args: execArgs(directory(p, m.home), check, args), env: env, dir: "/", user: m.home.user,
	})
	if errors.Is(err, unix.E2BIG) {
		started, err = failed(exitDenied, "arguments and environment of the program are too long for the kernel"), nil
	}
	if err != nil {
		return err
	}
	m.programs[p.ID] = started
	return nil
}

// selfExe is the path by which the guest agent runs itself again.
const selfExe = "/proc/self/exe"

func directory(p fleet.Program, home account) string {
	if p.Dir == "" {
		return home.dir
	}
	return p.Dir
}

func (m *member) program(id string) (*program, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.programs[id]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("program %q was never launched in this guest", id)
}

// Wait returns when the program has ended.
func (m *member) Wait(ctx context.Context, id string) (fleet.Exit, error) {
	p, err := m.program(id)
	if err != nil {
		return fleet.Exit{}, err
	}
	return p.wait(ctx)
}

// Read gives output.
func (m *member) Read(ctx context.Context, id, name string, offset int64) ([]byte, bool, error) {
	p, err := m.program(id)
	if err != nil {
		return nil, false, err
	}
	o, err := p.stream(name)
	if err != nil {
		return nil, false, err
	}
	return o.read(ctx, offset)
}

// Write gives the program input.
func (m *member) Write(ctx context.Context, id string, offset int64, data []byte, eof bool) (int64, error) {
	p, err := m.program(id)
	if err != nil {
		return 0, err
	}
	return p.in.write(ctx, offset, data, eof)
}

// Trace gives the MPI traces of the ranks in this guest.
func (m *member) Trace(_ context.Context, q fleet.TraceQuery) ([]fleet.Trace, error) {
	return ranks.Read(ranks.Folder, q, say)
}

// Shutdown ends all programs, flushes files and unmounts the share. The guest agent goes on.
// After an error files may be lost; if ctx ended, the share may still be mounted: call
// again.
func (m *member) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endAll(ctx)
	if m.remote != nil {
		m.remote.close()
		m.remote = nil
	}
	if m.setting != nil {
		m.shares = directories(m.setting.setup)
	}
	m.setting = nil // the next setup starts from the beginning
	if contained {
		return flushShares(m.shares)
	}
	return unmountShares(ctx, m.shares)
}
