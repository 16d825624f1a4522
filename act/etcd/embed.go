package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"pagurus/internal/pause"
)

// EmbedConfig is the embedded etcd's configuration.
type EmbedConfig struct {
	Dir  string // created if missing; used by one process at a time
	Peer Peer   // how this member reaches others and is reached; zero: it is alone, and listens nowhere
}

// Settings of the embedded etcd. It serves one process and a few thousand objects, so it
// is small and quiet; fsync stays on.
const (
	// A start waits for one election, 0.1 to 0.5 s with this clock, which costs 0.5 % of
	// a core when idle. A clock five times slower costs 0.3 % and makes a start take up
	// to 4 s.
	tick     = 100 * time.Millisecond
	election = 500 * time.Millisecond
	// The write-ahead log is already safe; this is the delay until data is also in the
	// database file.
	batchInterval    = time.Second
	quotaBytes       = 512 << 20 // etcd has spareShare more, or what frees space would be refused as well
	spareShare       = 8
	segmentBytes     = 8 << 20 // etcd's default of 64 MB, allocated twice, is too much for a lab
	snapshotEvery    = 2000    // transactions; their log is kept in memory
	keepEntries      = 100
	memberCheckEvery = time.Hour // between checks for clusters of several members

	maxTxnOps       = 20_000
	maxRequestBytes = 8 << 20

	// ReserveBytes must be free before a change: the next segment of the log, the
	// database's next step, and a reserve. etcd ends its process when a write fails.
	// Other users of the disk must leave more than this.
	ReserveBytes = 2*segmentBytes + 16<<20 + 16<<20

	startLimit = 60 * time.Second
	closeLimit = 10 * time.Second
	logBytes   = 1 << 20 // a longer log is restarted
	roomEvery  = 500 * time.Millisecond
)

// member is the embedded etcd.
type member struct {
	dir     string
	peer    Peer
	started chan struct{} // nil: not started; closed when the start has finished
	etcd    *embed.Etcd   // set before started is closed
	fault   *fault
	lock    *os.File
	log     *os.File

	reserve, quota, roomy, compactAfter int64

	unseen atomic.Int64 // bytes written that the file's size may not show yet

	tidying  sync.Mutex // guards tidiness, and is held while something of etcd is used that its end would break
	tidiness tidiness
	copying  sync.RWMutex // read: the file is being copied

	living  context.Context    // until it is stopped on purpose
	quit    context.CancelFunc // ends it
	closing sync.Once
	closed  error // valid within closing
}

// Embed starts a member of etcd inside this process. Nobody calls it but this process and, if c.Peer says where,
// the other members. With others it returns when most of them are there. After an error
// nothing of it runs, unless the error is a full disk or says that it did not stop: then
// the process should end.
func Embed(ctx context.Context, c EmbedConfig) (*Store, error) {
	s, err := newMember(c).embed(ctx)
	if err == nil {
		go s.keepTidy()
	}
	return s, err
}

func newMember(c EmbedConfig) *member {
	m := &member{
		dir: c.Dir, peer: c.Peer, fault: newFault(c.Dir),
		reserve: ReserveBytes, quota: quotaBytes, roomy: roomyBytes, compactAfter: compactBytes,
	}
	m.living, m.quit = context.WithCancel(context.Background())
	return m
}

// embed starts it. It is not kept tidy yet.
func (m *member) embed(ctx context.Context) (*Store, error) {
	if err := m.open(ctx); err != nil {
		return nil, fmt.Errorf("starting the store in %s: %w", m.dir, errors.Join(err, m.abandon()))
	}
	client := v3client.New(m.etcd.Server)
	client.KV = stopping{client.KV, m.etcd.Server.StoppingNotify()}
	s := &Store{client: client, member: m, candidate: Candidate{Name: m.peer.Name, Serves: m.peer.Serves}}
	if err := s.takePart(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the store in %s: %w", m.dir, err), s.Close())
	}
	return s, nil
}

func (m *member) open(ctx context.Context) error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	var err error
	if m.lock, err = os.OpenFile(filepath.Join(m.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(m.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another controller uses it: stop that one or give this one another --state folder")
	}
	if err := m.room(); err != nil {
		return err
	}
	logPath, flags := filepath.Join(m.dir, "etcd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND
	if st, err := os.Stat(logPath); err == nil && st.Size() > logBytes {
		flags |= os.O_TRUNC
	}
	if m.log, err = os.OpenFile(logPath, flags, 0o600); err != nil {
		return err
	}
	return m.start(ctx)
}

// start runs etcd's start in a goroutine of its own: where etcd would end the process,
// only that goroutine ends.
func (m *member) start(ctx context.Context) error {
	limit := startLimit
	if m.peer.Listen != "" {
		limit = gatherLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tuneSegments()
	var err error
	m.started = make(chan struct{})
	go func() {
		defer close(m.started)
		m.etcd, err = embed.StartEtcd(m.config())
	}()
	select {
	case <-m.started:
	case <-ctx.Done():
		return fmt.Errorf("etcd did not start: %w; see %s", ctx.Err(), m.log.Name())
	}
	if cause := m.fault.cause(); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	go m.noticeStop()
	select {
	case <-m.etcd.Server.ReadyNotify():
		return nil
	case <-m.fault.done:
		return m.fault.cause()
	case <-ctx.Done():
		if m.peer.Listen != "" && ctx.Err() == context.DeadlineExceeded {
			return fmt.Errorf("%w; its log is %s", errAway, m.log.Name())
		}
		return fmt.Errorf("etcd was not ready in time: %w; see %s", ctx.Err(), m.log.Name())
	}
}

// abandon releases the folder after a failed start. A running start cannot be cancelled:
// etcd must start and stop before the folder is released. After a fault or an error it
// stays locked.
func (m *member) abandon() error {
	if m.fault.broken() {
		return nil // the error is already known
	}
	gone := make(chan error, 1)
	go func() {
		if m.started != nil {
			<-m.started
		}
		var err error
		if m.etcd != nil {
			// A new member that is stopped before it has stored its membership would
			// never become ready again. One of several may wait for others without end.
			patience := closeLimit
			if m.peer.Listen != "" {
				patience = 0
			}
			select {
			case <-m.etcd.Server.ReadyNotify():
			case <-m.fault.done:
			case <-time.After(patience):
			}
			err = m.stop()
		}
		if err == nil && !m.fault.broken() {
			m.release()
		}
		gone <- err
	}()
	select {
	case err := <-gone:
		return err
	case <-time.After(startLimit):
		return fmt.Errorf("it is still starting after %v more: end this process", startLimit)
	}
}

var segmentsTuned sync.Once

// tuneSegments sets a value for which etcd has no option.
func tuneSegments() { segmentsTuned.Do(func() { wal.SegmentSizeBytes = segmentBytes }) }

func (m *member) config() *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = "pagurus", filepath.Join(m.dir, "data")
	// A member must have an address; no socket listens there.
	no := url.URL{Scheme: "http", Host: nowhere}
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{no}, []url.URL{no}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs, c.ElectionMs = uint(tick.Milliseconds()), uint(election.Milliseconds())
	c.BackendBatchInterval = batchInterval
	c.QuotaBackendBytes = m.quota + m.quota/spareShare
	c.SnapshotCount, c.SnapshotCatchUpEntries = snapshotEvery, keepEntries
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.MaxTxnOps, c.MaxRequestBytes = maxTxnOps, maxRequestBytes
	c.DowngradeCheckTime = memberCheckEvery
	c.EnableGRPCGateway = false
	// A slow disk's fsync should not fill the log.
	c.WarningApplyDuration, c.WarningUnaryRequestDuration = time.Second, time.Second
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(m.logger())
	m.peer.configure(c)
	return c
}

// logger writes warnings to the store's log. Where etcd would end the process or panic,
// only the goroutine ends, and the fault is recorded.
func (m *member) logger() *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339TimeEncoder
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.Lock(m.log), zap.WarnLevel)
	return zap.New(core, zap.ErrorOutput(zapcore.Lock(m.log)), zap.WithFatalHook(m.fault), zap.WithPanicHook(m.fault))
}

// room refuses a change while the disk is almost full.
func (m *member) room() error {
	if cause := m.fault.cause(); cause != nil {
		return cause
	}
	free, err := freeBytes(m.dir)
	if err != nil {
		return err
	}
	if free < m.reserve {
		return fmt.Errorf("the disk that holds %s is full: %d MiB are free and %d MiB are needed; free some space and try again", m.dir, free>>20, m.reserve>>20)
	}
	return nil
}

// RoomAgain returns nil when the embedded etcd stopped because of a full disk and there
// is room again. Then the process should restart, because it cannot start etcd a second
// time. Otherwise it returns when ctx ends.
func (s *Store) RoomAgain(ctx context.Context) error {
	if s.member == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.member.fault.done:
	}
	for {
		free, err := freeBytes(s.member.dir)
		if err == nil && s.member.fault.noSpace() && free >= ReserveBytes {
			return nil
		}
		if pause.For(ctx, roomEvery) != nil {
			return ctx.Err()
		}
	}
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("checking the space left in %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// close stops etcd and releases the folder, unless part of etcd may still write to it.
func (m *member) close() error {
	m.closing.Do(func() {
		if m.closed = m.stop(); m.closed == nil {
			m.release()
		}
	})
	return m.closed
}

// stop ends etcd. After a fault it may never release its locks: then it is abandoned, and the
// data folder stays locked until the process ends.
func (m *member) stop() error {
	done := make(chan struct{})
	m.quit()
	go func() {
		defer close(done)
		m.tidying.Lock() // until what it does now is done
		defer m.tidying.Unlock()
		m.etcd.Close()
	}()
	limit := closeLimit
	if m.fault.broken() {
		limit = time.Second
	}
	select {
	case <-done:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("the store in %s did not stop within %v", m.dir, limit)
	}
}

func (m *member) release() {
	for _, f := range []*os.File{m.log, m.lock} {
		if f != nil {
			f.Close()
		}
	}
}

// fault is the reason why etcd stopped unexpectedly.
type fault struct {
	dir  string
	once sync.Once
	done chan struct{} // closed at a fault
	what string        // set before done is closed

	stays atomic.Bool // who finds a fault now keeps its locks
}

func newFault(dir string) *fault { return &fault{dir: dir, done: make(chan struct{})} }

// OnWrite is called by etcd's logger where etcd would end the process. Only the goroutine
// that logged it ends, or stays for ever with the locks that it has.
func (f *fault) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	what := e.Message
	for _, field := range fields {
		if err, is := field.Interface.(error); is && err != nil {
			what += ": " + err.Error()
		}
	}
	f.noteFault(what)
	if f.stays.Load() {
		select {}
	}
	runtime.Goexit()
}

func (f *fault) noteFault(what string) {
	f.once.Do(func() {
		f.what = what
		close(f.done)
	})
}

// cause is the fault as an error, or nil.
func (f *fault) cause() error {
	select {
	case <-f.done:
	default:
		return nil
	}
	if f.what == removed {
		return ErrRemoved
	}
	if f.noSpace() {
		return fmt.Errorf("the disk that holds %s is full and the store has stopped: free some space, and the controller restarts by itself; running jobs go on (%s)", f.dir, f.what)
	}
	return fmt.Errorf("the store in %s has stopped: restart the controller; running jobs go on (%s)", f.dir, f.what)
}

// broken reports whether etcd stopped where it would have ended the process, and cannot be stopped properly.
func (f *fault) broken() bool {
	cause := f.cause()
	return cause != nil && !errors.Is(cause, ErrRemoved)
}

// noSpace reports whether the fault was a full disk. There must be a fault.
func (f *fault) noSpace() bool { return strings.Contains(f.what, unix.ENOSPC.Error()) }
