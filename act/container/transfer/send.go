package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The kinds of message, the first byte of each.
const (
	opFolder = 'd'
	opFile   = 'f' // begins a file: the next blocks and holes belong to it
	opBlock  = 'b'
	opHole   = 'h'
	opClose  = 'e' // ends the file
	opLink   = 'l' // symbolic
	opNode   = 'n' // fifo, or the device by which an overlay marks a removed file
	opSame   = 'k' // hard link
	opRemove = 'x'
	opStamp  = 't' // times of a folder
)

// blockBytes is the unit in which files are compared and sent.
const blockBytes = 64 << 10

// coarse is more than the delay of the kernel's clock for files. A file that changed so shortly
// before its examination may change again without a new time.
const coarse = 50 * time.Millisecond

// file identifies a file by device and inode number.
type file struct{ device, number uint64 }

// Source holds the folders at the sending side, and knows what the other side has of them.
type Source struct {
	root  string
	names []string
	seed  maphash.Seed
	have  map[string]*item // by path
	block []byte           // buffer for one block, shared by hundreds of small files
	said  []byte           // buffer for a message
}

// item records what was sent of one path.
type item struct {
	stat   unix.Stat_t
	unsure bool     // it may have changed since without a new time
	first  string   // of a hard link: the path under which its content was sent
	to     string   // of a symbolic link
	more   []byte   // extended attributes as sent
	sums   []uint64 // of its blocks
}

// NewSource sends the named folders in root. It assumes that the other side has nothing
// yet.
func NewSource(root string, names ...string) *Source {
	return &Source{root: root, names: names, seed: maphash.MakeSeed(), have: map[string]*item{}}
}

// pass is one walk over all folders.
type pass struct {
	*Source
	ctx    context.Context
	send   func([]byte) error
	mapped map[uint64]bool
	sent   int64
	top    int // the opened root
	now    map[string]*item
	links  map[file]string // hard links: the first path of each
	stamps []string        // folders in which something changed
	begun  time.Time
}

// Pass sends everything that changed since the last pass, and returns the bytes of content sent.
// mapped holds the inode numbers of mapped files: their times are unreliable, so their contents
// are compared. While files change, a pass may miss some changes, but a later pass always finds
// them. After an error the other side has a part; start again with both sides empty. The
// argument of send is valid until send returns.
func (s *Source) Pass(ctx context.Context, mapped map[uint64]bool, send func([]byte) error) (int64, error) {
	p := &pass{
		Source: s, ctx: ctx, send: send, mapped: mapped, begun: time.Now(),
		now: map[string]*item{}, links: map[file]string{},
	}
	root, err := unix.Open(s.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", s.root, err)
	}
	defer unix.Close(root)
	p.top = root
	// All paths are examined before anything is sent: removed files must be deleted before
	// others take their places.
	for _, name := range s.names {
		if err := p.scanPath(root, name, name); err != nil {
			return p.sent, fmt.Errorf("scan the guest's files: %w", err)
		}
	}
	if err := p.removals(); err != nil {
		return p.sent, err
	}
	for _, name := range p.order() {
		if err := p.item(root, name); err != nil {
			return p.sent, fmt.Errorf("send %s of the guest: %w", name, err)
		}
	}
	for _, name := range p.stamps {
		if err := p.stamp(name); err != nil {
			return p.sent, err
		}
	}
	s.have = p.now
	return p.sent, nil
}

// scanPath records a path and everything below it.
func (p *pass) scanPath(folder int, base, name string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	i := &item{}
	if err := unix.Fstatat(folder, base, &i.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return passed(err)
	}
	kind := i.stat.Mode & unix.S_IFMT
	if kind == unix.S_IFSOCK {
		return nil // only the process that has it can make it
	}
	if kind == unix.S_IFREG && i.stat.Nlink > 1 {
		f := file{i.stat.Dev, i.stat.Ino}
		if first, ok := p.links[f]; ok {
			i.first = first
		} else {
			p.links[f] = name
		}
	}
	i.unsure = p.begun.Sub(time.Unix(i.stat.Ctim.Unix())) < coarse || p.mapped[i.stat.Ino]
	if kind == unix.S_IFLNK {
		to, err := readLink(folder, base)
		if err != nil {
			return passed(err)
		}
		i.to = to
	}
	p.now[name] = i
	if kind != unix.S_IFDIR {
		return nil
	}
	fd, err := unix.Openat(folder, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return passed(err)
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return passed(err)
	}
	slices.Sort(names)
	for _, n := range names {
		if err := p.scanPath(fd, n, path.Join(name, n)); err != nil {
			return err
		}
	}
	return nil
}

// passed returns nil for an error that says that a path has disappeared, or changed its type,
// since its name was read. A later pass examines it again.
func passed(err error) error {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ESTALE} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

func readLink(folder int, base string) (string, error) {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(folder, base, buffer)
	return string(buffer[:max(0, n)]), err
}

// order returns all paths, each folder before its content.
func (p *pass) order() []string {
	all := make([]string, 0, len(p.now))
	for name := range p.now {
		all = append(all, name)
	}
	slices.SortFunc(all, func(a, b string) int {
		// Hard links come last, after the files that they link to.
		la, lb := p.now[a].first != "", p.now[b].first != ""
		if la != lb {
			if la {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	return all
}

// removals sends which paths are gone, or have become something else.
func (p *pass) removals() error {
	var gone []string
	for name, old := range p.have {
		if i := p.now[name]; i == nil || !i.follows(old) {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	told := map[string]bool{}
	for _, name := range gone {
		if inside(told, name) {
			continue // it is removed with its folder
		}
		told[name] = true
		if err := p.send(message(opRemove, name)); err != nil {
			return err
		}
		p.touch(name)
	}
	// In a folder that was replaced, everything is new.
	for name := range p.have {
		if told[name] || inside(told, name) {
			delete(p.have, name)
		}
	}
	return nil
}

// inside reports whether a path is below one in the set.
func inside(set map[string]bool, name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if set[dir] {
			return true
		}
	}
	return false
}

// follows reports whether the new item can be made from the old one without removing it.
func (i *item) follows(old *item) bool {
	return i.stat.Ino == old.stat.Ino && i.stat.Dev == old.stat.Dev && i.stat.Mode&unix.S_IFMT == old.stat.Mode&unix.S_IFMT &&
		i.first == old.first && i.to == old.to && i.stat.Rdev == old.stat.Rdev
}

// touch records that a path's folder has changed.
func (p *pass) touch(name string) {
	if dir := path.Dir(name); dir != "." && p.now[dir] != nil && !slices.Contains(p.stamps, dir) {
		p.stamps = append(p.stamps, dir)
	}
}

// item sends one path if it has changed.
func (p *pass) item(root int, name string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	i, old := p.now[name], p.have[name]
	if dir := path.Dir(name); dir != "." && p.now[dir] == nil || i.first != "" && p.now[i.first] == nil {
		delete(p.now, name) // its folder or link target disappeared meanwhile
		return nil
	}
	if old != nil && i.stat.Ctim == old.stat.Ctim && !old.unsure && !i.unsure {
		i.sums, i.more = old.sums, old.more
		return nil
	}
	if old == nil {
		p.touch(name)
	}
	switch kind := i.stat.Mode & unix.S_IFMT; {
	case i.first != "":
		if old == nil {
			return p.send(message(opSame, name, i.first))
		}
		return nil
	case kind == unix.S_IFREG:
		return p.file(root, name, i, old)
	case kind == unix.S_IFDIR:
		p.stamps = append(p.stamps, name)
		return p.whole(opFolder, name, i, old)
	case kind == unix.S_IFLNK:
		return p.whole(opLink, name, i, old, i.to)
	default:
		return p.whole(opNode, name, i, old)
	}
}

// whole sends an item that fits into one message.
func (p *pass) whole(op byte, name string, i, old *item, more ...string) (err error) {
	if i.more, err = attributes(p.top, name); err != nil {
		return p.forget(name, err)
	}
	if old != nil && !i.differs(old) {
		return nil
	}
	m := message(op, append([]string{name}, more...)...)
	return p.send(append(appendStat(m, &i.stat), i.more...))
}

func (i *item) differs(old *item) bool {
	a, b := i.stat, old.stat
	return a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Mtim != b.Mtim || a.Size != b.Size || !bytes.Equal(i.more, old.more)
}

// file sends the changed blocks of a file.
func (p *pass) file(root int, name string, i, old *item) error {
	fd, err := open(root, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return p.forget(name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := unix.Fstat(fd, &i.stat); err != nil || i.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return p.forget(name, passed(err))
	}
	i.unsure = i.unsure || time.Since(time.Unix(i.stat.Ctim.Unix())) < coarse
	if i.more, err = attributes(root, name); err != nil {
		return p.forget(name, err)
	}
	open := false
	begin := func() error {
		if open {
			return nil
		}
		open = true
		return p.send(append(appendStat(message(opFile, name), &i.stat), i.more...))
	}
	if old == nil || i.differs(old) {
		if err := begin(); err != nil {
			return err
		}
	}
	if err := p.blocks(f, i, old, begin); err != nil || !open {
		return err
	}
	return p.send(appendTimes(message(opClose, ""), &i.stat))
}

// forget omits a path that has disappeared meanwhile. The next pass removes what the
// other side has of it.
func (p *pass) forget(name string, err error) error {
	if err = passed(err); err != nil {
		return err
	}
	if old := p.have[name]; old != nil {
		p.now[name] = old
	} else {
		delete(p.now, name)
	}
	return nil
}

// blocks compares a file's blocks with those sent before, and sends those that differ.
func (p *pass) blocks(f *os.File, i, old *item, begin func() error) error {
	if p.block == nil {
		p.block = make([]byte, blockBytes)
	}
	data, hole := int64(0), int64(0) // where the next data and the next hole begin
	for at := int64(0); at < i.stat.Size; at += blockBytes {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if at >= hole { // holes need not be read
			data, hole = extent(f, at, i.stat.Size)
		}
		n := min(blockBytes, i.stat.Size-at)
		part := p.block[:n]
		if at+n <= data {
			clear(part)
		} else if _, err := io.ReadFull(io.NewSectionReader(f, at, n), part); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				i.unsure = true // the file became shorter; the next pass finds that
				return nil
			}
			return err
		}
		sum, index := maphash.Bytes(p.seed, part), int(at/blockBytes)
		i.sums = append(i.sums, sum)
		had := old != nil && index < len(old.sums) && old.stat.Size >= at+n
		if had && old.sums[index] == sum {
			continue
		}
		empty := zero(part)
		if !had && empty && (old == nil || old.stat.Size <= at) {
			continue // zeros need not be sent: a new file has only holes
		}
		if err := begin(); err != nil {
			return err
		}
		var head [8]byte
		binary.BigEndian.PutUint64(head[:], uint64(at))
		m := append(append(p.said[:0], message(opBlock, "")...), head[:]...)
		if empty {
			m[0] = opHole
			m = binary.BigEndian.AppendUint64(m, uint64(n))
		} else {
			m = append(m, part...)
			p.sent += n
		}
		p.said = m
		if err := p.send(m); err != nil {
			return err
		}
	}
	return nil
}

// extent finds the next data at or after an offset in a file, and its end.
func extent(f *os.File, at, size int64) (data, hole int64) {
	data, err := f.Seek(at, unix.SEEK_DATA)
	if err != nil {
		return size, size // no more data; or the kernel cannot tell, and the whole file is read
	}
	if hole, err = f.Seek(data, unix.SEEK_HOLE); err != nil {
		hole = size
	}
	return data, hole
}

var nothing [blockBytes]byte

func zero(b []byte) bool { return bytes.Equal(b, nothing[:len(b)]) }

// stamp sends a folder's times, which every change in the folder modifies.
func (p *pass) stamp(name string) error {
	i := p.now[name]
	if i == nil {
		return nil
	}
	return p.send(appendTimes(message(opStamp, name), &i.stat))
}
