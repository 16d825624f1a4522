package vault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/restic/chunker"
	"golang.org/x/sync/errgroup"

	"pagurus/fleet"
)

// Chunks is where parts of checkpoints are put, and from where they come: a Store, or another host's.
type Chunks interface {
	// Missing says which chunks have to be put for a part.
	Missing(context.Context, Part, []fleet.Digest) ([]fleet.Digest, error)
	// PutChunk puts a compressed chunk for a part.
	PutChunk(context.Context, Part, fleet.Digest, []byte) error
	// PutManifest finishes a part, whose chunks have been put.
	PutManifest(context.Context, Part, []byte) error
	// Manifest gives the manifest of a finished part.
	Manifest(context.Context, Part) ([]byte, error)
	// Chunk gives a compressed chunk of a finished part.
	Chunk(context.Context, Part, fleet.Digest) ([]byte, error)
}

// Put is what a Save has put.
type Put struct {
	Manifest fleet.Digest
	Bytes    int64 // of the files
	NewBytes int64 // by which the vault grew: compressed, and only what it did not have
}

// polynomial decides where files are cut. Another one would cut all of them elsewhere, and nothing would
// be shared with older checkpoints.
const polynomial = chunker.Pol(0x3DA3358B4DC173)

const (
	workers     = 4       // that compress and send at once
	batchChunks = 64      // are asked for at once
	batchBytes  = 8 << 20 // bounds the memory of a batch
)

// Save puts all files of a folder as a part into to. It reads them and changes nothing there. After an
// error the part may be there unfinished, and NewBytes of it: Save again, or abandon it.
func Save(ctx context.Context, folder string, p Part, to Chunks) (Put, error) {
	if err := checkPart(p); err != nil {
		return Put{}, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return Put{}, fmt.Errorf("save %s: %w", p.Guest, err)
	}
	defer root.Close()
	w := saving{part: p, to: to, asked: map[fleet.Digest]bool{}}
	w.pool, w.ctx = errgroup.WithContext(ctx)
	w.pool.SetLimit(workers)
	m := Manifest{Version: manifestVersion, Checkpoint: p.Checkpoint, Guest: p.Guest}
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		f, err := w.file(root, path, e)
		m.Files = append(m.Files, f)
		return err
	})
	if err == nil {
		err = w.flush()
	}
	if failed := w.pool.Wait(); failed != nil {
		err = failed // the other follows from it
	}
	if err != nil {
		return Put{NewBytes: w.added.Load()}, fmt.Errorf("save %s for checkpoint %s: %w", p.Guest, p.Checkpoint, err)
	}
	if err := m.check(); err != nil {
		return Put{NewBytes: w.added.Load()}, fmt.Errorf("save %s for checkpoint %s: %w", p.Guest, p.Checkpoint, err)
	}
	text, err := m.Text()
	if err == nil {
		err = to.PutManifest(ctx, p, text)
	}
	if err != nil {
		return Put{NewBytes: w.added.Load()}, fmt.Errorf("save %s for checkpoint %s: %w", p.Guest, p.Checkpoint, err)
	}
	return Put{Manifest: DigestOf(text), Bytes: m.Bytes(), NewBytes: w.added.Load() + int64(len(text))}, nil
}

// saving is one Save.
type saving struct {
	part  Part
	to    Chunks
	ctx   context.Context
	pool  *errgroup.Group
	asked map[fleet.Digest]bool
	batch []piece // not yet asked for
	size  int     // of batch
	added atomic.Int64
}

// piece is a chunk with its bytes.
type piece struct {
	digest fleet.Digest
	plain  []byte
}

func (w *saving) file(root *os.Root, path string, e fs.DirEntry) (File, error) {
	info, err := root.Lstat(path)
	if err != nil {
		return File{}, err
	}
	f := File{Path: filepath.ToSlash(path), Mode: info.Mode().Perm()}
	switch info.Mode().Type() {
	case fs.ModeDir:
		f.Folder = true
		return f, nil
	case fs.ModeSymlink:
		f.Link, err = root.Readlink(path)
		return f, err
	case 0:
		return w.content(root, f)
	}
	return f, fmt.Errorf("%s is neither a file, a folder nor a symbolic link", path)
}

// content cuts a file into chunks.
func (w *saving) content(root *os.Root, f File) (File, error) {
	in, err := root.Open(f.Path)
	if err != nil {
		return f, err
	}
	defer in.Close()
	cut := chunker.NewWithBoundaries(in, polynomial, minChunk, maxChunk)
	cut.SetAverageBits(averageBits)
	for {
		c, err := cut.Next(make([]byte, 0, maxChunk/2))
		if errors.Is(err, io.EOF) {
			return f, nil
		}
		if err != nil {
			return f, err
		}
		d := DigestOf(c.Data)
		f.Chunks = append(f.Chunks, Chunk{d, int64(len(c.Data))})
		f.Bytes += int64(len(c.Data))
		if w.asked[d] {
			continue
		}
		w.asked[d] = true
		w.batch = append(w.batch, piece{d, c.Data})
		w.size += len(c.Data)
		if len(w.batch) >= batchChunks || w.size >= batchBytes {
			if err := w.flush(); err != nil {
				return f, err
			}
		}
	}
}

// flush has the batch put, as far as it is missing. It waits while all workers are busy, so memory is
// bounded.
func (w *saving) flush() error {
	batch := w.batch
	w.batch, w.size = nil, 0
	if err := w.ctx.Err(); err != nil || len(batch) == 0 {
		return err
	}
	w.pool.Go(func() error {
		var names []fleet.Digest
		for _, c := range batch {
			names = append(names, c.digest)
		}
		missing, err := w.to.Missing(w.ctx, w.part, names)
		if err != nil {
			return err
		}
		lacks := map[fleet.Digest]bool{}
		for _, d := range missing {
			lacks[d] = true
		}
		for _, c := range batch {
			if !lacks[c.digest] {
				continue
			}
			packed := pack(c.plain)
			if err := w.to.PutChunk(w.ctx, w.part, c.digest, packed); err != nil {
				return err
			}
			w.added.Add(int64(len(packed)))
		}
		return nil
	})
	return nil
}
