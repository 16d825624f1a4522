package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// BinaryCache stores guest agents in a folder with a tmpfs mounted on it. Many hosts do not
// allow programs to run from such folders' own file systems.
type BinaryCache struct {
	Own string // digest of this host's own guest agent, which is always kept

	dir     string
	lockDir *os.File // the parent folder, locked by every process that has the cache open
}

// coming begins the names of incomplete guest agents.
const coming = "coming-"

// mostBytes is more than the size of any guest agent.
const mostBytes = 256 << 20

// OpenBinaryCache opens the cache in a folder, with its content, or creates it. No part of the
// path may be a link. It adds a copy of this host's own guest agent.
func OpenBinaryCache(dir, own string) (*BinaryCache, error) {
	turn, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	s := &BinaryCache{dir: dir, lockDir: turn}
	made, err := s.open()
	if err == nil {
		s.Own, err = s.add(own)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep guest agents in %s: %w", dir, err), s.Close(made))
	}
	return s, nil
}

func lock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// open mounts the cache if it is not mounted. Only a process that is alone does that; others
// wait until it is done.
func (s *BinaryCache) open() (made bool, err error) {
	for {
		alone := lock(s.lockDir, unix.LOCK_EX|unix.LOCK_NB) == nil
		there, err := s.mounted()
		if err == nil && alone {
			if there {
				err = s.drop()
			} else {
				made, err = true, s.mount()
			}
		}
		if err = errors.Join(err, lock(s.lockDir, unix.LOCK_SH)); err != nil {
			return made, err
		}
		if there, err = s.mounted(); there || err != nil { // otherwise another process has just unmounted it
			return made, err
		}
	}
}

func (s *BinaryCache) mounted() (bool, error) {
	var at, above unix.Stat_t
	err := unix.Stat(s.dir, &at)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	err = errors.Join(err, unix.Fstat(int(s.lockDir.Fd()), &above))
	return at.Dev != above.Dev, err
}

func (s *BinaryCache) mount() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount("pagurus", s.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "mode=0700"))
}

// drop removes incomplete guest agents of processes that have ended.
func (s *BinaryCache) drop() error {
	all, err := os.ReadDir(s.dir)
	for _, e := range all {
		if strings.HasPrefix(e.Name(), coming) {
			err = errors.Join(err, os.Remove(filepath.Join(s.dir, e.Name())))
		}
	}
	return err
}

// Path returns the path of a guest agent, which need not exist.
func (s *BinaryCache) Path(digest string) string { return filepath.Join(s.dir, digest) }

// Lacks reports whether the guest agent with this digest is missing. An empty digest belongs to
// a guest that needs none.
func (s *BinaryCache) Lacks(digest string) (bool, error) {
	if digest == "" {
		return false, nil
	}
	if !proper(digest) {
		return false, fmt.Errorf("%.80q is not the digest of a guest agent", digest)
	}
	_, err := os.Stat(s.Path(digest))
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// proper reports whether a word can be a digest. The word may come from another host and is used
// as a file name.
func proper(digest string) bool {
	sum, err := hex.DecodeString(digest)
	return err == nil && len(sum) == sha256.Size && strings.ToLower(digest) == digest
}

// add copies a file into the cache and returns its digest.
func (s *BinaryCache) add(path string) (digest string, err error) {
	from, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer from.Close()
	p, err := s.part("")
	if err != nil {
		return "", err
	}
	if _, err = io.Copy(p, from); err != nil {
		return "", errors.Join(err, p.Drop())
	}
	err = p.Close()
	return p.digest, err
}

// ReceiveBinary starts to receive a guest agent, which must have the given digest.
func (s *BinaryCache) ReceiveBinary(digest string) (*Part, error) {
	if !proper(digest) {
		return nil, fmt.Errorf("%.80q is not the digest of a guest agent", digest)
	}
	return s.part(digest)
}

func (s *BinaryCache) part(digest string) (*Part, error) {
	file, err := os.CreateTemp(s.dir, coming)
	if err != nil {
		return nil, err
	}
	return &Part{cache: s, digest: digest, file: file, sum: sha256.New()}, nil
}

// KeepOnly removes all guest agents that are not needed, except the host's own.
func (s *BinaryCache) KeepOnly(needed func(digest string) bool) error {
	all, err := os.ReadDir(s.dir)
	for _, e := range all {
		if name := e.Name(); proper(name) && name != s.Own && !needed(name) {
			err = errors.Join(err, os.Remove(filepath.Join(s.dir, name)))
		}
	}
	return err
}

// Close closes the cache. idle says that no guest runs an agent of the cache: then the cache is
// removed, unless another process has it open. Close does nothing on a nil cache.
func (s *BinaryCache) Close(idle bool) error {
	if s == nil {
		return nil
	}
	defer s.lockDir.Close()
	if !idle || lock(s.lockDir, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	if err := unix.Unmount(s.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("take %s off: %w", s.dir, err)
	}
	if err := os.Remove(s.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Part is an incomplete guest agent.
type Part struct {
	cache  *BinaryCache
	digest string // empty: any
	file   *os.File
	sum    hash.Hash
	bytes  int64
}

// Write appends content.
func (p *Part) Write(content []byte) (int, error) {
	if p.bytes += int64(len(content)); p.bytes > mostBytes {
		return 0, fmt.Errorf("a guest agent of more than %d bytes cannot be one", mostBytes)
	}
	p.sum.Write(content)
	return p.file.Write(content)
}

// Close stores the complete guest agent. If its digest is wrong, Close drops it and returns an
// error. An existing file is not replaced, because guests have it mounted.
func (p *Part) Close() error {
	came := hex.EncodeToString(p.sum.Sum(nil))
	if p.digest == "" {
		p.digest = came
	}
	err := p.file.Chmod(0o755)
	if err == nil && came != p.digest {
		err = fmt.Errorf("a guest agent of digest %s came, not of %s", came, p.digest)
	}
	// It is closed first: a file that is open for writing cannot be executed.
	if err = errors.Join(err, p.file.Close()); err == nil {
		err = os.Link(p.file.Name(), p.cache.Path(p.digest))
	}
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(p.file.Name()))
}

// Drop discards the part.
func (p *Part) Drop() error { return errors.Join(p.file.Close(), os.Remove(p.file.Name())) }
