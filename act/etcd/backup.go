// This file copies the whole store into a file, and makes a store of such a file. It must not
// know what the objects mean. Its tests use a real embedded etcd and one over a socket.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// passedOver is by how much a restored store's revision rises, so that nobody who has seen a
// later one takes an older object for a newer.
const passedOver = 1_000_000

// SnapshotFile copies the store at one revision into a file without a name in dir. It is gone
// when it is closed. The store may be written meanwhile.
func (s *Store) SnapshotFile(ctx context.Context, dir string) (_ *os.File, err error) {
	size, err := s.size(ctx)
	if err != nil {
		return nil, err
	}
	free, err := freeBytes(dir)
	if err != nil {
		return nil, err
	}
	if free < size+ReserveBytes {
		return nil, fmt.Errorf("the disk that holds %s has %d MiB free, and a copy of the store needs %d: free some space and try again", dir, free>>20, (size+ReserveBytes)>>20)
	}
	f, err := os.CreateTemp(dir, "snapshot-")
	if err != nil {
		return nil, fmt.Errorf("copying the store: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, fmt.Errorf("copying the store: %w", err)
	}
	if s.member != nil {
		s.member.copying.RLock()
		defer s.member.copying.RUnlock()
	}
	ctx, cancel := s.untilFault(ctx)
	defer cancel()
	got, err := s.client.SnapshotWithVersion(ctx)
	if err != nil {
		return nil, s.explained(ctx, "copying the store", err)
	}
	defer got.Snapshot.Close()
	if _, err := io.Copy(f, got.Snapshot); err != nil {
		return nil, s.explained(ctx, "copying the store", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("copying the store: %w", err)
	}
	return f, nil
}

// size is about how long a copy of the store is.
func (s *Store) size(ctx context.Context) (int64, error) {
	if s.member != nil {
		return s.member.etcd.Server.Backend().Size(), nil
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	var failed error
	for _, at := range s.client.Endpoints() {
		is, err := s.client.Status(ctx, at)
		if err == nil {
			return is.DbSize, nil
		}
		failed = err
	}
	return 0, s.explained(ctx, "asking etcd how large it is", failed)
}

// RestoreSnapshot makes the folder of an embedded store of a copy. After an error the folder is
// incomplete and may be removed.
func RestoreSnapshot(file, dir string) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("restoring the store: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("restoring the store: %w", err)
	}
	free, err := freeBytes(dir)
	if err != nil {
		return err
	}
	if need := info.Size() + 2*ReserveBytes; free < need {
		return fmt.Errorf("the disk that holds %s has %d MiB free, and the store needs %d: free some space and try again", dir, free>>20, need>>20)
	}
	tuneSegments()
	m := newMember(EmbedConfig{Dir: dir})
	c := m.config()
	done := make(chan error, 1)
	go func() { // where etcd would end the process, only this goroutine ends
		failed := errors.New("etcd could not restore it")
		defer func() {
			if p := recover(); p != nil {
				failed = fmt.Errorf("etcd could not restore it: %v", p)
			}
			done <- failed
		}()
		log := zap.New(zap.NewNop().Core(), zap.WithFatalHook(m.fault), zap.WithPanicHook(m.fault))
		failed = snapshot.NewV3(log).Restore(snapshot.RestoreConfig{
			SnapshotPath: file, Name: c.Name, OutputDataDir: c.Dir, PeerURLs: []string{c.AdvertisePeerUrls[0].String()},
			InitialCluster: c.InitialCluster, InitialClusterToken: c.InitialClusterToken,
			RevisionBump: passedOver, MarkCompacted: true,
		})
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("restoring the store: %w", err)
	}
	return nil
}

// Held reports whether a process uses the embedded store in dir.
func Held(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking whether the store is in use: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// Empty reports whether nobody has used the store.
func (s *Store) Empty(ctx context.Context) (bool, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	got, err := s.client.Get(ctx, family, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return false, s.explained(ctx, "reading the store", err)
	}
	return len(got.Kvs) == 0, nil
}

// Replace puts a snapshot in the place of all that the store has, in one change.
func (s *Store) Replace(ctx context.Context, with fleet.Snapshot) error {
	had, err := s.load(ctx)
	if err != nil {
		return err
	}
	c := fleet.Changeset{Cluster: &with.Cluster}
	c.Hosts, c.GoneHosts = replaced(had.Hosts, with.Hosts)
	c.Guests, c.GoneGuests = replaced(had.Guests, with.Guests)
	c.Jobs, c.GoneJobs = replaced(had.Jobs, with.Jobs)
	c.Moves, c.GoneMoves = replaced(had.Moves, with.Moves)
	c.Migrations, c.GoneMigrations = replaced(had.Migrations, with.Migrations)
	c.Checkpoints, c.GoneCheckpoints = replaced(had.Checkpoints, with.Checkpoints)
	c.Users, c.GoneUsers = replaced(had.Users, with.Users)
	c.Tokens, c.GoneTokens = replaced(had.Tokens, with.Tokens)
	_, err = s.Commit(ctx, had.Revision, c)
	return err
}

// replaced gives what there is to put and to delete.
func replaced[K comparable, V any](had, with map[K]V) (put []V, gone []K) {
	for _, v := range with {
		put = append(put, v)
	}
	for k := range had {
		if _, stays := with[k]; !stays {
			gone = append(gone, k)
		}
	}
	return put, gone
}
