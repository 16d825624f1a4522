// Package backup is the form of a backup: a tar archive, compressed by gzip, whose first entry
// says what follows, with a checksum for each part.
//
// It must not know what the parts mean, who makes a backup, or where its parts go. Its tests
// cut, alter and forge archives.
package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Format is the newest form that this package knows, and the one that it writes.
const Format = 1

// The parts of a backup.
const (
	StorePart        = "store.db"      // etcd's snapshot
	AuthorityPart    = "authority.crt" // the cluster's authority
	AuthorityKeyPart = "authority.key"
	ConfigFolder     = "config" // config.toml and conf.d of the head
	ImagesFolder     = "images" // labels of the images that had a name
)

const (
	kind          = "pagurus backup"
	manifestName  = "manifest.json"
	manifestBytes = 1 << 20
)

// partForm is what a part may be called: it becomes a path.
var partForm = regexp.MustCompile(`^(store\.db|authority\.(crt|key)|config/config\.toml|config/conf\.d/[A-Za-z0-9._-]+\.toml|images/[A-Za-z0-9._-]+\.json)$`)

// Manifest says what a backup holds, and of which cluster.
type Manifest struct {
	Kind    string    `json:"kind"`
	Format  int       `json:"format"`
	Version string    `json:"version"`        // of the Pagurus that made it
	Cluster string    `json:"cluster"`        // the cluster's ID
	Name    string    `json:"name,omitempty"` // what people call it
	At      time.Time `json:"at"`
	State   string    `json:"state"` // the controller's state folder
	Parts   []Part    `json:"parts"`
}

// Part is one file of a backup.
type Part struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Bytes is the length of all parts.
func (m Manifest) Bytes() (sum int64) {
	for _, p := range m.Parts {
		sum += p.Bytes
	}
	return sum
}

// Source is a part that is to be written.
type Source struct {
	Name string
	From io.ReadSeeker
}

// Write writes a backup of the sources to w, not compressed. It sets the manifest's kind, format
// and parts.
func Write(w io.Writer, m Manifest, sources []Source) error {
	m.Kind, m.Format, m.Parts = kind, Format, nil
	for _, s := range sources {
		sum := sha256.New()
		n, err := io.Copy(sum, s.From)
		if err == nil {
			_, err = s.From.Seek(0, io.SeekStart)
		}
		if err != nil {
			return fmt.Errorf("reading %s for the backup: %w", s.Name, err)
		}
		m.Parts = append(m.Parts, Part{s.Name, n, hex.EncodeToString(sum.Sum(nil))})
	}
	head, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the backup: %w", err)
	}
	out := tar.NewWriter(w)
	for i, s := range append([]Source{{manifestName, bytes.NewReader(head)}}, sources...) {
		size := int64(len(head))
		if i > 0 {
			size = m.Parts[i-1].Bytes
		}
		err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: s.Name, Size: size, Mode: 0o600, ModTime: m.At})
		if err == nil {
			_, err = io.Copy(out, s.From)
		}
		if err != nil {
			return fmt.Errorf("writing %s to the backup: %w", s.Name, err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("writing the backup: %w", err)
	}
	return nil
}

// Errors of an archive that is no whole backup. All are sentences without their subject.
var (
	errForeign = errors.New("is not a backup of Pagurus")
	errCut     = errors.New("is cut off: use another copy")
)

func altered(what string) error {
	return fmt.Errorf("was altered: %s is not what was written; use another copy", what)
}

// ReadFile reads a whole backup from a file, verifies it, and puts its parts below dir; an empty
// dir only verifies. After an error what is in dir counts for nothing.
func ReadFile(file, dir string, progress func(done, all int64)) (Manifest, error) {
	f, err := os.Open(file)
	if err != nil {
		return Manifest{}, fmt.Errorf("reading the backup: %w", err)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		if info, failed := f.Stat(); failed == nil && info.Mode().IsRegular() {
			return Manifest{}, fmt.Errorf("%s %w", file, errForeign)
		}
		return Manifest{}, fmt.Errorf("reading the backup %s: %w", file, err)
	}
	m, err := Read(plain, dir, progress)
	if err != nil {
		return m, fmt.Errorf("%s %w", file, err)
	}
	return m, nil
}

// Read does the same with an archive that is not compressed. Its errors have no subject.
func Read(r io.Reader, dir string, progress func(done, all int64)) (Manifest, error) {
	in := tar.NewReader(r)
	m, err := readManifest(in)
	if err != nil {
		return m, err
	}
	if err := room(dir, m.Bytes()); err != nil {
		return m, err
	}
	done := int64(0)
	for _, p := range m.Parts {
		h, err := in.Next()
		if err != nil {
			return m, broken(err, p.Name)
		}
		if h.Name != p.Name || h.Size != p.Bytes || h.Typeflag != tar.TypeReg {
			return m, altered(p.Name)
		}
		sum := sha256.New()
		counted := writerFunc(func(b []byte) (int, error) {
			if done += int64(len(b)); progress != nil {
				progress(done, m.Bytes())
			}
			return sum.Write(b)
		})
		if err := keepPart(io.TeeReader(in, counted), dir, p.Name); err != nil {
			return m, err
		}
		if hex.EncodeToString(sum.Sum(nil)) != p.SHA256 {
			return m, altered(p.Name)
		}
	}
	if _, err := in.Next(); err != io.EOF {
		return m, broken(cmpErr(err), "its end")
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n > 0 && !padding(n) {
		return m, broken(cmpErr(err), "its end") // gzip's checksum is at the end
	}
	return m, nil
}

// padding reports whether so many bytes may follow the end of a tar archive.
func padding(n int64) bool { return n <= 10<<10 }

// cmpErr is an error in any case.
func cmpErr(err error) error {
	if err == nil {
		return tar.ErrHeader
	}
	return err
}

// writerFunc is a function as a Writer.
type writerFunc func([]byte) (int, error)

// Write calls the function.
func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// broken says what is wrong with an archive.
func broken(err error, where string) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errCut
	case errors.Is(err, tar.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), isCorrupt(err):
		return altered(where)
	}
	return fmt.Errorf("cannot be read: %w", err)
}

// isCorrupt: compress/flate has a type for it, which says where.
func isCorrupt(err error) bool {
	return err != nil && regexp.MustCompile(`^flate: `).MatchString(err.Error())
}

func readManifest(in *tar.Reader) (m Manifest, err error) {
	h, err := in.Next()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return m, errCut
	case err != nil, h.Name != manifestName, h.Size > manifestBytes:
		return m, errForeign
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return m, broken(err, manifestName)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, altered(manifestName)
	}
	if m.Kind != kind {
		return m, errForeign
	}
	if m.Format != Format {
		return m, fmt.Errorf("is of format %d, by pagurus %s, and this pagurus knows format %d: use the version that made it", m.Format, m.Version, Format)
	}
	has := map[string]bool{}
	for _, p := range m.Parts {
		if !MayBe(p.Name) || has[p.Name] || p.Bytes < 0 {
			return m, altered(manifestName)
		}
		has[p.Name] = true
	}
	if !has[StorePart] || !has[AuthorityPart] || !has[AuthorityKeyPart] || slices.Contains([]string{m.Cluster, m.Version}, "") {
		return m, altered(manifestName)
	}
	return m, nil
}

// room refuses to unpack what does not fit.
func room(dir string, bytes int64) error {
	if dir == "" {
		return nil
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("cannot be unpacked: %w", err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < bytes {
		return fmt.Errorf("needs %d MiB, and the disk that holds %s has %d free: free some space and try again", bytes>>20, dir, free>>20)
	}
	return nil
}

// keepPart writes a part below dir, or reads it if dir is empty.
func keepPart(from io.Reader, dir, name string) (err error) {
	if dir == "" {
		if _, err := io.Copy(io.Discard, from); err != nil {
			return broken(err, name)
		}
		return nil
	}
	at := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return fmt.Errorf("cannot be unpacked: %w", err)
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot be unpacked: %w", err)
	}
	_, err = io.Copy(f, from)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if wrong := (*os.PathError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("cannot be unpacked: %w", err)
	}
	if err != nil {
		return broken(err, name)
	}
	return nil
}

// MayBe reports whether a part may have a name.
func MayBe(name string) bool {
	return partForm.MatchString(name) && filepath.IsLocal(name) && path.Clean(name) == name
}
