// Package vault keeps checkpoints of guests in a folder of a host: files cut into chunks by
// their content, each chunk once, compressed, and named by the SHA-256 of its bytes. So a
// checkpoint of a guest that has changed little needs little room, and little has to be sent.
//
// It must not know what is in the files, who may put or have them, or how one host reaches
// another: Save and Load work with any Chunks, and a Store is one. Its tests run on real file
// systems: also on one that is full, and with processes that are killed between any two steps.
package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Errors that callers branch on. They live in fleet because callers may not import this package.
var (
	ErrUnknown = fleet.ErrNotKept
	ErrNoRoom  = fleet.ErrNoRoom
	ErrDamaged = fleet.ErrDamaged
)

// Part is one guest's part of a checkpoint.
type Part = fleet.PartName

// name keeps what comes from elsewhere from becoming a path.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func checkPart(p Part) error {
	if !name.MatchString(string(p.Checkpoint)) || !name.MatchString(string(p.Guest)) {
		return fmt.Errorf("%q of checkpoint %q is not a valid name of a guest's part", p.Guest, p.Checkpoint)
	}
	return nil
}

// Folders and files of a store.
const (
	chunksFolder    = "chunks"
	manifestsFolder = "manifests"
	puttingFolder   = "putting" // what is being written; emptied by Open
	lockFile        = "lock"
)

// Store is a folder of checkpoints:
//
//	chunks/XX/XXXX…           a chunk, compressed; its name is its digest
//	manifests/CHECKPOINT/GUEST.json
//	putting/                  what is being written
//
// One process uses it at a time. A part is there when its manifest is: that comes last, and goes
// first. Chunks without a manifest are removed when the store is opened. All methods may be called
// at once.
type Store struct {
	at    place
	quota int64

	finishing sync.Mutex // held while a part is finished or a checkpoint is removed

	mu       sync.Mutex
	sizes    map[fleet.Digest]int64 // of the chunks' files
	unsynced map[fleet.Digest]bool  // those that a power loss may take
	uses     map[fleet.Digest]int   // manifests that have the chunk, each counted once, and unfinished parts
	kept     map[Part]keptPart      // the manifests
	pinned   map[Part]map[fleet.Digest]bool
	taken    map[Part]int64        // bytes on disk of the pinned chunks
	removed  []fleet.CheckpointID  // the last ones: what is still on its way to them is refused
	used     int64                 // bytes of all files
	writing  int64                 // bytes of those that are being written
	broken   map[Part]error        // manifests that cannot be read
	doomed   map[fleet.Digest]bool // chunks that are being removed from a slow place
	undoomed *sync.Cond            // of mu: one was

	removing sync.WaitGroup // of doomed
	few      chan struct{}  // that are removed at once
}

// mostRemoved are remembered: many more than end while a chunk is on its way.
const mostRemoved = 1000

// keptPart is what is known of a manifest.
type keptPart struct {
	bytes  int64 // of its file
	digest fleet.Digest
	chunks map[fleet.Digest]bool
}

// Config says where a store is and how large it may become.
type Config struct {
	Folder string
	Bucket *Bucket // in the place of Folder
	Quota  int64   // bytes; 0 is no limit
}

// Open makes a store of a folder, which only root may read, or of a bucket, and removes what an unfinished Save
// left. After an error nothing is open.
func Open(c Config) (_ *Store, err error) {
	dir, err := filepath.Abs(c.Folder)
	if err != nil {
		return nil, fmt.Errorf("find the vault: %w", err)
	}
	s := &Store{
		at: &disk{dir: dir}, quota: c.Quota, sizes: map[fleet.Digest]int64{}, unsynced: map[fleet.Digest]bool{}, uses: map[fleet.Digest]int{},
		kept: map[Part]keptPart{}, pinned: map[Part]map[fleet.Digest]bool{}, taken: map[Part]int64{}, broken: map[Part]error{},
		doomed: map[fleet.Digest]bool{}, few: make(chan struct{}, syncWorkers),
	}
	s.undoomed = sync.NewCond(&s.mu)
	if c.Bucket != nil {
		if s.at, err = c.Bucket.place(); err != nil {
			return nil, err
		}
	}
	if err := s.at.open(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.at.close() // the error says more
		}
	}()
	for _, step := range []func() error{s.readChunks, s.readManifests, s.sweep} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("open the vault %s: %w", s.at, s.at.said(err))
		}
	}
	return s, nil
}

// fit refuses a folder that has other things than a vault: its mode would change, and others use it.
func fit(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the vault: %w", err)
	}
	has := map[string]bool{}
	for _, e := range entries {
		has[e.Name()] = true
	}
	if has[chunksFolder] && has[manifestsFolder] {
		return nil // it is one
	}
	for _, known := range []string{chunksFolder, manifestsFolder, puttingFolder, lockFile, "lost+found"} {
		delete(has, known)
	}
	for odd := range has {
		return fmt.Errorf("the folder %s has %s and is no vault: choose an empty folder", dir, odd)
	}
	return nil
}

// Close lets another process have the store. What is in it stays.
func (s *Store) Close() error {
	s.removing.Wait()
	return s.at.close()
}

// readChunks finds out which chunks are here. Their content is tested when it is read.
func (s *Store) readChunks() error {
	all, err := s.at.list(chunksFolder)
	for name, size := range all {
		d := fleet.Digest(digestPrefix + path.Base(name))
		if !validDigest(d) || chunkName(d) != name {
			continue // it is not ours
		}
		s.sizes[d] = size
		s.used += size
	}
	return err
}

func (s *Store) readManifests() error {
	all, err := s.at.list(manifestsFolder)
	if err != nil {
		return err
	}
	for name := range all {
		guest, is := strings.CutSuffix(path.Base(name), manifestSuffix)
		p := Part{Checkpoint: fleet.CheckpointID(path.Base(path.Dir(name))), Guest: fleet.GuestID(guest)}
		if !is || checkPart(p) != nil || manifestName(p) != name {
			continue // it is not ours
		}
		text, err := s.at.read(name)
		if err != nil {
			return err
		}
		m, err := ParseManifest(text)
		if err == nil {
			err = m.copyOf(p)
		}
		if err != nil {
			s.broken[p] = fmt.Errorf("%w: the manifest %s in %s: %w; remove the checkpoint", ErrDamaged, name, s.at, err)
			continue
		}
		s.noteLocked(p, text, m)
	}
	return nil
}

// noteLocked counts a manifest that is on disk.
func (s *Store) noteLocked(p Part, text []byte, m Manifest) {
	k := keptPart{bytes: int64(len(text)), digest: DigestOf(text), chunks: m.chunks()}
	for d := range k.chunks {
		s.uses[d]++
	}
	s.kept[p] = k
	s.used += k.bytes
}

// sweep removes chunks that no manifest has: they may have been lost by half with the power. If a manifest cannot
// be read nobody knows which ones it has, and the files of all stay, but count as absent.
func (s *Store) sweep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for d := range s.sizes {
		switch {
		case s.uses[d] > 0:
		case len(s.broken) > 0:
			delete(s.sizes, d)
		default:
			errs = append(errs, s.dropChunkLocked(d))
		}
	}
	return errors.Join(errs...)
}

// Usage is what the store holds, for people and for who chooses a vault.
type Usage struct {
	Bytes   int64 // on disk
	Quota   int64 // 0: no limit
	Free    int64 // what more may be put: of the quota or of the disk, whichever is less
	Parts   int
	Chunks  int
	Trouble string // what is wrong; empty: nothing
}

// Usage says what the store holds now.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := Usage{Bytes: s.used, Quota: s.quota, Parts: len(s.kept), Chunks: len(s.sizes)}
	if spare, err := s.at.spare(); err != nil {
		u.Trouble = fmt.Sprintf("the vault %s: %v", s.at, err)
	} else {
		u.Free = max(0, spare)
	}
	if s.quota > 0 {
		u.Free = max(0, min(u.Free, s.quota-s.used-s.writing))
	}
	for _, err := range s.broken {
		u.Trouble = err.Error()
	}
	return u
}

// List says which parts are here, each with the digest of its manifest.
func (s *Store) List() map[Part]fleet.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[Part]fleet.Digest{}
	for p, k := range s.kept {
		out[p] = k.digest
	}
	return out
}

// Holds says which checkpoints have something here, also what cannot be read.
func (s *Store) Holds() []fleet.CheckpointID {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[fleet.CheckpointID]bool{}
	for p := range s.kept {
		all[p.Checkpoint] = true
	}
	for p := range s.broken {
		all[p.Checkpoint] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// Remove removes all parts of a checkpoint, finished or not, and the chunks that no other has. It
// being absent is not an error. After an error call again.
func (s *Store) Remove(checkpoint fleet.CheckpointID) error {
	if !name.MatchString(string(checkpoint)) {
		return fmt.Errorf("%q is not a valid name of a checkpoint", checkpoint)
	}
	s.finishing.Lock()
	defer s.finishing.Unlock()
	if err := s.at.remove(path.Join(manifestsFolder, string(checkpoint))); err != nil { // before the chunks
		return fmt.Errorf("remove checkpoint %s: %w", checkpoint, s.at.said(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.removed, checkpoint) {
		s.removed = append(s.removed[max(0, len(s.removed)-mostRemoved+1):], checkpoint)
	}
	maps.DeleteFunc(s.broken, func(p Part, _ error) bool { return p.Checkpoint == checkpoint })
	var errs []error
	for p, k := range s.kept {
		if p.Checkpoint == checkpoint {
			delete(s.kept, p)
			s.used -= k.bytes
			errs = append(errs, s.releaseLocked(k.chunks))
		}
	}
	for p := range s.pinned {
		if p.Checkpoint == checkpoint {
			errs = append(errs, s.abandonLocked(p))
		}
	}
	return errors.Join(errs...)
}

// Abandon forgets a part that was never finished, with the chunks that only it has. A finished one
// stays.
func (s *Store) Abandon(p Part) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.abandonLocked(p)
}

func (s *Store) abandonLocked(p Part) error {
	chunks := s.pinned[p]
	delete(s.pinned, p)
	delete(s.taken, p)
	return s.releaseLocked(chunks)
}

// releaseLocked counts one use less of each chunk, and removes those without any.
func (s *Store) releaseLocked(chunks map[fleet.Digest]bool) error {
	var errs []error
	for d := range chunks {
		if s.uses[d]--; s.uses[d] > 0 {
			continue
		}
		delete(s.uses, d)
		if _, here := s.sizes[d]; here && len(s.broken) == 0 {
			errs = append(errs, s.dropChunkLocked(d))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) dropChunkLocked(d fleet.Digest) error {
	size := s.sizes[d]
	if s.at.slow() {
		s.doom(d)
	} else if err := s.at.remove(chunkName(d)); err != nil {
		return fmt.Errorf("remove a chunk: %w", err)
	}
	s.used -= size
	delete(s.sizes, d)
	delete(s.unsynced, d)
	return nil
}

// doom removes a chunk while others go on; who puts it again waits. One that stays counts for nothing, and the next Open
// removes it. The caller holds the lock.
func (s *Store) doom(d fleet.Digest) {
	if s.doomed[d] {
		return
	}
	s.doomed[d] = true
	s.removing.Go(func() {
		s.few <- struct{}{}
		defer func() { <-s.few }()
		_ = s.at.remove(chunkName(d))
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.doomed, d)
		s.undoomed.Broadcast()
	})
}

// chunkName is the file of a chunk.
func chunkName(d fleet.Digest) string {
	hex := strings.TrimPrefix(string(d), digestPrefix)
	return path.Join(chunksFolder, hex[:2], hex)
}

const (
	manifestSuffix = ".json"
	manifestKind   = "manifest"
)

func manifestName(p Part) string {
	return path.Join(manifestsFolder, string(p.Checkpoint), string(p.Guest)+manifestSuffix)
}

// said turns a full disk into one sentence.
func said(err error, dir string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: the disk that holds %s is full: remove checkpoints, or make room there", ErrNoRoom, dir)
	}
	return err
}

// syncPath makes a file, or the names in a folder, survive a power loss.
func syncPath(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
