package vault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"pagurus/fleet"
)

// Sizes of chunks. Small ones are shared by more checkpoints, and cost more files: a quarter of a
// MiB is 64 pages of memory.
const (
	minChunk     = 64 << 10
	maxChunk     = 1 << 20
	averageBits  = 18
	digestPrefix = "sha256-"
)

// mostPacked is how long a compressed chunk may be: zstd makes what cannot be compressed a little
// longer.
const mostPacked = maxChunk + 1<<10

var digestForm = regexp.MustCompile(`^` + digestPrefix + `[0-9a-f]{64}$`)

func validDigest(d fleet.Digest) bool { return digestForm.MatchString(string(d)) }

// DigestOf is the name of bytes.
func DigestOf(b []byte) fleet.Digest {
	sum := sha256.Sum256(b)
	return fleet.Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

// packer and unpacker are made once: each has tables of some MiB. Both may be used at once.
var (
	packer, _   = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false)) // the digest tests more
	unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxChunk), zstd.WithDecoderConcurrency(0))
)

// pack compresses a chunk.
func pack(plain []byte) []byte { return packer.EncodeAll(plain, nil) }

// unpack gives the bytes of a chunk, and an error if they are not those of its name.
func unpack(d fleet.Digest, packed []byte) ([]byte, error) {
	if len(packed) > mostPacked {
		return nil, fmt.Errorf("%w: chunk %s is %d bytes long", ErrDamaged, d, len(packed))
	}
	plain, err := unpacker.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %s: %w", ErrDamaged, d, err)
	}
	if got := DigestOf(plain); got != d {
		return nil, fmt.Errorf("%w: chunk %s has the content of %s", ErrDamaged, d, got)
	}
	return plain, nil
}

// Missing says which of these chunks have to be put for a part. The others stay until the part is
// finished, abandoned or removed.
func (s *Store) Missing(_ context.Context, p Part, of []fleet.Digest) ([]fleet.Digest, error) {
	if err := checkPart(p); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(of, func(d fleet.Digest) bool { return !validDigest(d) }); i >= 0 {
		return nil, fmt.Errorf("%q is not the name of a chunk", of[i])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.removedLocked(p); err != nil {
		return nil, err
	}
	var missing []fleet.Digest
	asked := map[fleet.Digest]bool{}
	for _, d := range of {
		if _, here := s.sizes[d]; here {
			s.pinLocked(p, d)
		} else if !asked[d] {
			asked[d], missing = true, append(missing, d)
		}
	}
	return missing, nil
}

func (s *Store) pinLocked(p Part, d fleet.Digest) {
	if s.pinned[p] == nil {
		s.pinned[p] = map[fleet.Digest]bool{}
	}
	if !s.pinned[p][d] {
		s.pinned[p][d] = true
		s.uses[d]++
		s.taken[p] += blocks(s.sizes[d])
	}
}

// blocks is what a file of a length takes: file systems give whole blocks, and many small files cost, too.
func blocks(bytes int64) int64 {
	const block = 4 << 10
	return (bytes + block - 1) / block * block
}

// removedLocked refuses what comes for a checkpoint after its removal.
func (s *Store) removedLocked(p Part) error {
	if slices.Contains(s.removed, p.Checkpoint) {
		return fmt.Errorf("%w: checkpoint %s has been removed", ErrUnknown, p.Checkpoint)
	}
	return nil
}

// Bounded is the store for one part, where another host says what is in it: its files may be most bytes long
// together, and its chunks take no more. 0 is no limit.
func (s *Store) Bounded(most int64) Chunks {
	if most <= 0 {
		return s
	}
	return bounded{Store: s, most: most}
}

// Back is the store for a part that comes back under another checkpoint's name: its manifest has that of its own, and has to
// be this one.
func (s *Store) Back(manifest fleet.Digest, most int64) Chunks { return bounded{s, most, manifest} }

type bounded struct {
	*Store
	most int64        // 0: no limit
	only fleet.Digest // of the manifest; empty: any one of the part
}

// PutChunk satisfies Chunks.
func (b bounded) PutChunk(ctx context.Context, p Part, d fleet.Digest, packed []byte) error {
	b.mu.Lock()
	more := b.taken[p] + blocks(int64(len(packed)))
	if b.pinned[p][d] {
		more = b.taken[p]
	}
	b.mu.Unlock()
	if b.most > 0 && more > b.most {
		return fmt.Errorf("%s of checkpoint %s may take %d bytes, and takes more", p.Guest, p.Checkpoint, b.most)
	}
	return b.Store.PutChunk(ctx, p, d, packed)
}

// PutManifest satisfies Chunks.
func (b bounded) PutManifest(ctx context.Context, p Part, text []byte) error {
	return b.putManifest(ctx, p, text, b)
}

// fits reports an error if a manifest may not be put for a part.
func (b bounded) fits(p Part, text []byte, m Manifest) error {
	if b.only == "" {
		return errors.Join(m.of(p), m.within(b.most))
	}
	if got := DigestOf(text); got != b.only {
		return fmt.Errorf("%w: the manifest is %s, not %s", ErrDamaged, short(got), short(b.only))
	}
	return errors.Join(m.copyOf(p), m.within(b.most))
}

// PutChunk puts a compressed chunk for a part. It is tested before it is kept. After an error it is
// not here, unless it was.
func (s *Store) PutChunk(_ context.Context, p Part, d fleet.Digest, packed []byte) error {
	if err := checkPart(p); err != nil {
		return err
	}
	if !validDigest(d) {
		return fmt.Errorf("%q is not the name of a chunk", d)
	}
	if _, err := unpack(d, packed); err != nil {
		return err
	}
	size := int64(len(packed))
	s.mu.Lock()
	if err := s.removedLocked(p); err != nil {
		s.mu.Unlock()
		return err
	}
	if _, here := s.sizes[d]; here {
		s.pinLocked(p, d)
		s.mu.Unlock()
		return nil
	}
	if err := s.roomLocked(size); err != nil {
		s.mu.Unlock()
		return err
	}
	s.writing += size
	for s.doomed[d] { // it would be removed after this
		s.undoomed.Wait()
	}
	s.mu.Unlock()
	err := s.at.write(chunkName(d), packed, "chunk")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing -= size
	if err != nil {
		return fmt.Errorf("put a chunk: %w", s.at.said(err))
	}
	if _, here := s.sizes[d]; !here { // two may have written it
		if err := s.whole(d, size); err != nil { // and one of them removed it
			return fmt.Errorf("put a chunk: %w", err)
		}
		s.sizes[d] = size
		s.used += size
		s.unsynced[d] = true
	}
	s.pinLocked(p, d)
	if err := s.removedLocked(p); err != nil { // meanwhile
		return errors.Join(err, s.abandonLocked(p))
	}
	return nil
}

// whole reports an error if a chunk's file is not as it was put: somebody, or a broken disk, took or cut it.
func (s *Store) whole(d fleet.Digest, size int64) error {
	switch is, err := s.at.length(chunkName(d), size); {
	case err != nil:
		return fmt.Errorf("chunk %s is lost: %w", d, s.at.said(err))
	case is != size:
		return fmt.Errorf("chunk %s has %d bytes on disk, and had %d", d, is, size)
	}
	return nil
}

func (s *Store) roomLocked(size int64) error {
	if s.quota > 0 && s.used+s.writing+size > s.quota {
		return fmt.Errorf("%w: %s may hold %d bytes and holds %d: remove checkpoints, or let it hold more", ErrNoRoom, s.at, s.quota, s.used)
	}
	if spare, err := s.at.spare(); err == nil && spare < size { // an error follows from writing, too
		return fmt.Errorf("%w: a tenth of the disk that holds %s stays free, and the rest is full: remove checkpoints, or make room there", ErrNoRoom, s.at)
	}
	return nil
}

// Chunk gives a compressed chunk that a finished part has. A damaged one is removed, so that the next
// checkpoint puts it again.
func (s *Store) Chunk(_ context.Context, p Part, d fleet.Digest) ([]byte, error) {
	s.mu.Lock()
	has := s.kept[p].chunks[d]
	s.mu.Unlock()
	if !has {
		return nil, fmt.Errorf("%w: %s of %s has no chunk %q", ErrUnknown, p.Guest, p.Checkpoint, d)
	}
	packed, err := s.at.read(chunkName(d))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: chunk %s is missing", ErrDamaged, d)
	}
	if err == nil {
		_, err = unpack(d, packed)
	}
	if errors.Is(err, ErrDamaged) {
		s.mu.Lock()
		err = errors.Join(err, s.dropChunkLocked(d))
		s.mu.Unlock()
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", p.Checkpoint, s.at.said(err))
	}
	return packed, nil
}

// PutManifest finishes a part: all its chunks have to be here. Again with the same manifest: no error.
// After an error the part is as it was.
func (s *Store) PutManifest(ctx context.Context, p Part, text []byte) error {
	return s.putManifest(ctx, p, text, bounded{})
}

func (s *Store) putManifest(ctx context.Context, p Part, text []byte, by bounded) error {
	m, err := ParseManifest(text)
	if err == nil {
		err = by.fits(p, text, m)
	}
	if err != nil {
		return fmt.Errorf("put a manifest: %w", err)
	}
	s.finishing.Lock()
	defer s.finishing.Unlock()
	done, err := s.claim(p, text, m)
	if done || err != nil {
		return err
	}
	name := manifestName(p)
	if err = s.syncChunks(ctx, m); err == nil {
		err = s.at.write(name, text, manifestKind)
	}
	if err == nil {
		err = s.at.syncFiles([]string{name})
	}
	if err != nil {
		return fmt.Errorf("put a manifest: %w", errors.Join(s.at.said(err), s.at.remove(name)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteLocked(p, text, m)
	return s.abandonLocked(p)
}

// claim makes sure that all chunks of a manifest are here and stay. done: the part is finished already, with this
// manifest.
func (s *Store) claim(p Part, text []byte, m Manifest) (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, is := s.kept[p]; is {
		if k.digest == DigestOf(text) {
			return true, s.abandonLocked(p)
		}
		return false, fmt.Errorf("%s of checkpoint %s is finished, and another one may not take its place", p.Guest, p.Checkpoint)
	}
	if err := s.removedLocked(p); err != nil {
		return false, err
	}
	for d := range m.chunks() {
		if _, here := s.sizes[d]; !here {
			return false, fmt.Errorf("put a manifest: chunk %s is not here", d)
		}
		s.pinLocked(p, d)
		if err := s.whole(d, s.sizes[d]); err != nil { // the next try puts it
			return false, errors.Join(fmt.Errorf("put a manifest: %w", err), s.dropChunkLocked(d))
		}
	}
	return false, s.roomLocked(int64(len(text)))
}

// syncChunks makes a manifest's chunks survive a power loss, before the manifest does. It is done once for all:
// for each chunk alone it takes a hundred times as long on a disk. Until then a chunk needs not survive, since
// Open removes those without a manifest.
func (s *Store) syncChunks(ctx context.Context, m Manifest) error {
	s.mu.Lock()
	var names []string
	for d := range m.chunks() {
		if s.unsynced[d] {
			names = append(names, chunkName(d))
		}
	}
	s.mu.Unlock()
	if err := errors.Join(ctx.Err(), s.at.syncFiles(names)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range m.chunks() {
		delete(s.unsynced, d)
	}
	return nil
}

// Manifest gives the manifest of a finished part.
func (s *Store) Manifest(_ context.Context, p Part) ([]byte, error) {
	s.mu.Lock()
	k, is := s.kept[p]
	err := s.broken[p]
	s.mu.Unlock()
	if !is && err == nil {
		err = fmt.Errorf("%w: %s of %s", ErrUnknown, p.Guest, p.Checkpoint)
	}
	if err != nil {
		return nil, err
	}
	text, err := s.at.read(manifestName(p))
	if errors.Is(err, fs.ErrNotExist) { // an older checkpoint may do
		err = fmt.Errorf("%w: the manifest %s in %s is missing", ErrDamaged, manifestName(p), s.at)
	}
	if err == nil && DigestOf(text) != k.digest {
		err = fmt.Errorf("%w: the manifest %s in %s has changed", ErrDamaged, manifestName(p), s.at)
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", p.Checkpoint, s.at.said(err))
	}
	return text, nil
}

// zero reports whether all bytes are 0.
func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// short abbreviates a digest for people.
func short(d fleet.Digest) string {
	hex := strings.TrimPrefix(string(d), digestPrefix)
	return hex[:min(len(hex), 12)]
}
