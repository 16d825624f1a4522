package handle

import (
	"errors"
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// place is a mount of the served directories: one of them, or one below. A handle is of a place: a file system can be served
// at two places, and be read only at one.
type place struct {
	name  string // the same after a reboot
	mount int    // an open directory, or file, of it
}

// places are those of a guard.
type places struct {
	all  []place
	byID map[uint64]int // by the mounts' numbers
}

// errNoPlace says that a file is not in a served directory.
var errNoPlace = fmt.Errorf("the file is in no served directory: %w", unix.EACCES)

// placesOf finds the mounts of the served directories, with those below.
func (h held) placesOf(trees []string) (p places, err error) {
	p.byID = map[uint64]int{}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return p, fmt.Errorf("list the served mounts: %w", err)
	}
	for i, tree := range trees {
		if err := p.add(h, fmt.Sprintf("directory %d", i), tree); err != nil {
			return p, fmt.Errorf("find %s: %w", tree, err)
		}
		for _, m := range mounts {
			below, is := strings.CutPrefix(m.Mountpoint, tree+"/")
			if !is {
				continue
			}
			// What cannot be opened, such as what another mount hides, is not served.
			_ = p.add(h, fmt.Sprintf("directory %d, mount %s", i, below), m.Mountpoint)
		}
	}
	return p, nil
}

// add opens a place. Its user may be unable to read it. No link on the way counts: the user can make one below a directory at any time.
func (p *places) add(h held, name, path string) (err error) {
	fd := -1
	err = h.with(func() (err error) {
		fd, err = unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
		return err
	}, unix.CAP_DAC_READ_SEARCH)
	if err != nil {
		return err
	}
	id, err := mountID(fd)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	if _, known := p.byID[id]; known { // a name that came to mean another place
		return unix.Close(fd)
	}
	p.byID[id] = len(p.all)
	p.all = append(p.all, place{name: name, mount: fd})
	return nil
}

// mountID is the kernel's number of the mount through which a file was opened.
func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, unix.ENOSYS
	}
	return st.Mnt_id, nil
}

// of is the place of an open file.
func (p places) of(fd int) (place, error) {
	id, err := mountID(fd)
	if err != nil {
		return place{}, err
	}
	if i, known := p.byID[id]; known {
		return p.all[i], nil
	}
	return place{}, errNoPlace
}

// signer is the place of a signed handle, and the kernel's handle. The server does not say of which place it is: it is
// the one that the handle was signed for.
func (p places) signer(key []byte, kind int32, bytes []byte) (place, unix.FileHandle, error) {
	for _, at := range p.all {
		if h, err := unsign(key, at.name, kind, bytes); err == nil {
			return at, h, nil
		}
	}
	return place{}, unix.FileHandle{}, errForged
}
