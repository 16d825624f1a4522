package vault

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"pagurus/fleet"
)

// Limits of a manifest: what comes from another host is not more than a machine bears.
const (
	MostManifest = 256 << 20 // bytes of its text; a guest of 512 GiB needs about as many
	mostFiles    = 100_000
	mostPath     = 1024

	manifestVersion = 1
)

// Manifest says of what a guest's part of a checkpoint consists. Its digest names it.
type Manifest struct {
	Version    int                `json:"version"`
	Checkpoint fleet.CheckpointID `json:"checkpoint"`
	Guest      fleet.GuestID      `json:"guest"`
	Files      []File             `json:"files"` // a folder before what is in it
}

// File is a file, a folder or a symbolic link of a checkpoint.
type File struct {
	Path   string      `json:"path"` // below the folder, with slashes
	Mode   fs.FileMode `json:"mode"` // permissions alone
	Folder bool        `json:"folder,omitempty"`
	Link   string      `json:"link,omitempty"` // where a symbolic link leads, from its folder
	Bytes  int64       `json:"bytes,omitempty"`
	Chunks []Chunk     `json:"chunks,omitempty"` // in order
}

// Chunk is a piece of a file.
type Chunk struct {
	Digest fleet.Digest `json:"digest"`
	Bytes  int64        `json:"bytes"`
}

// Text is the manifest's form on disk. The same manifest has the same text.
func (m Manifest) Text() ([]byte, error) {
	text, err := json.Marshal(m)
	if err == nil && len(text) > MostManifest {
		err = fmt.Errorf("the manifest is %d bytes long, and may be %d", len(text), MostManifest)
	}
	return text, err
}

// ParseManifest reads a manifest that may come from anywhere. It refuses one that would write
// outside its folder, that contradicts itself, or that has what this program does not know.
func ParseManifest(text []byte) (Manifest, error) {
	var m Manifest
	if len(text) > MostManifest {
		return m, fmt.Errorf("the manifest is %d bytes long, and may be %d", len(text), MostManifest)
	}
	// A parser makes something of each comma before anybody can refuse it.
	if n := bytes.Count(text, []byte(",")); n > mostCommas(len(text)) {
		return m, fmt.Errorf("the manifest has %d things in %d bytes", n, len(text))
	}
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	if err := in.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("read a manifest: %w", err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, errors.New("read a manifest: something follows it")
	}
	if err := m.check(); err != nil {
		return Manifest{}, fmt.Errorf("read a manifest: %w", err)
	}
	return m, nil
}

// mostCommas: a chunk has two in a hundred bytes, a file eight.
func mostCommas(bytes int) int { return bytes/40 + 8*mostFiles }

func (m Manifest) check() error {
	if m.Version != manifestVersion {
		return fmt.Errorf("it has version %d, and this program reads %d", m.Version, manifestVersion)
	}
	if err := checkPart(Part{Checkpoint: m.Checkpoint, Guest: m.Guest}); err != nil {
		return err
	}
	if len(m.Files) > mostFiles {
		return fmt.Errorf("it has %d files, and may have %d", len(m.Files), mostFiles)
	}
	folders := map[string]bool{".": true}
	seen := map[string]bool{}
	for _, f := range m.Files {
		if err := f.check(); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		if seen[f.Path] {
			return fmt.Errorf("file %q: it comes twice", f.Path)
		}
		if !folders[path.Dir(f.Path)] {
			return fmt.Errorf("file %q: its folder does not come before it", f.Path)
		}
		seen[f.Path] = true
		if f.Folder {
			folders[f.Path] = true
		}
	}
	return nil
}

func (f File) check() error {
	if !localPath(f.Path) || f.Path == "." {
		return errors.New("the path leads outside the folder, or is not a plain one")
	}
	if f.Mode&^fs.ModePerm != 0 {
		return fmt.Errorf("mode %o is more than permissions", uint32(f.Mode))
	}
	if plain := !f.Folder && f.Link == ""; !plain && (f.Folder && f.Link != "" || f.Bytes != 0 || len(f.Chunks) > 0) {
		return errors.New("only a file has content, and nothing is a folder and a link")
	}
	if f.Link != "" && (path.IsAbs(f.Link) || !localPath(path.Join(path.Dir(f.Path), f.Link)) || strings.ContainsRune(f.Link, 0) || len(f.Link) > mostPath) {
		return fmt.Errorf("the link to %q leads outside the folder", f.Link)
	}
	total := int64(0)
	for _, c := range f.Chunks {
		if !validDigest(c.Digest) {
			return fmt.Errorf("%q is not the name of a chunk", c.Digest)
		}
		if c.Bytes <= 0 || c.Bytes > maxChunk {
			return fmt.Errorf("a chunk has %d bytes", c.Bytes)
		}
		total += c.Bytes
	}
	if total != f.Bytes {
		return fmt.Errorf("it has %d bytes, and its chunks %d", f.Bytes, total)
	}
	return nil
}

// localPath: below the folder, and in its shortest form.
func localPath(p string) bool {
	return len(p) <= mostPath && filepath.IsLocal(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

// of reports an error if the manifest is of another part.
func (m Manifest) of(p Part) error {
	if m.Checkpoint != p.Checkpoint || m.Guest != p.Guest {
		return fmt.Errorf("the manifest is of %q of checkpoint %q, not of %q of %q", m.Guest, m.Checkpoint, p.Guest, p.Checkpoint)
	}
	return nil
}

// copyOf reports an error if the manifest is not of this part, or of another one of the same guest: a copy that was given back
// is a checkpoint of its own, with the manifest that it had.
func (m Manifest) copyOf(p Part) error {
	mine, _ := m.Checkpoint.Job()
	if job, _ := p.Checkpoint.Job(); m.Guest != p.Guest || mine != job || job == "" && m.Checkpoint != p.Checkpoint {
		return m.of(p)
	}
	return nil
}

// within reports an error if the files are longer than most bytes together; 0 is no limit.
func (m Manifest) within(most int64) error {
	if got := m.Bytes(); most > 0 && got > most {
		return fmt.Errorf("its files have %d bytes together, and may have %d", got, most)
	}
	return nil
}

// chunks are all chunks of the manifest, each once.
func (m Manifest) chunks() map[fleet.Digest]bool {
	all := map[fleet.Digest]bool{}
	for _, f := range m.Files {
		for _, c := range f.Chunks {
			all[c.Digest] = true
		}
	}
	return all
}

// Bytes is how long all files are together.
func (m Manifest) Bytes() (total int64) {
	for _, f := range m.Files {
		total += f.Bytes
	}
	return total
}
