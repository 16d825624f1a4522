package criu

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// namedFile is a file of a network file system that a container has open and that the target
// opens by its name. Each host's kernel remembers for a moment what a name was, so that a
// target could find another file by it than the source.
type namedFile struct {
	At    string // its folder in the container
	Name  string // from there
	Inode uint64
}

// namesFile is the image in which they are recorded.
const namesFile = "pagurus-named.json"

// namesOf finds the files of remote folders that will be opened by their names.
func namesOf(pid int, folders []JobFolder) ([]namedFile, error) {
	var remote []JobFolder
	for _, f := range folders {
		if f.Remote || f.Crosses {
			remote = append(remote, f)
		}
	}
	if len(remote) == 0 {
		return nil, nil
	}
	jobs, err := placesOf(pid, remote)
	if err != nil {
		return nil, err
	}
	all, err := Processes(pid)
	if err != nil {
		return nil, err
	}
	var found []namedFile
	seen := map[string]bool{}
	for _, p := range all {
		for path, name := range opens(p, jobs) {
			st, err := statx(path)
			if err != nil || seen[name] {
				continue
			}
			for _, j := range jobs {
				rest, below := strings.CutPrefix(name, j.At)
				if !below || rest != "" && rest[0] != '/' || device64(st) != j.device || strings.HasSuffix(name, deleted) {
					continue
				}
				if _, without := j.nameless(p, path, name); !without {
					seen[name] = true
					found = append(found, namedFile{j.At, rest, st.Ino})
				}
			}
		}
	}
	return found, nil
}

// recordNames writes them into the images.
func (d *Dumping) recordNames(folders []JobFolder) error {
	found, err := namesOf(d.spec.PID, folders)
	if err != nil || len(found) == 0 {
		return err
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.spec.Images, namesFile), text, 0o600)
}

// checkNames makes sure that this host finds the same files by these names. It makes the
// kernel ask the server for each part of a path.
func (r *Restoring) checkNames(folders []SharedFolder) error {
	text, err := os.ReadFile(filepath.Join(r.spec.Images, namesFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var files []namedFile
	if err == nil {
		err = json.Unmarshal(text, &files)
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		for _, to := range folders {
			if to.At == f.At {
				if inode, err := lookAfresh(to.From, f.Name); err != nil || inode != f.Inode {
					return errors.Join(fmt.Errorf("%s%s is another file here than where the guest ran: somebody replaced it meanwhile", f.At, f.Name), err)
				}
			}
		}
	}
	return nil
}

// lookAfresh gives the inode that a path below a folder leads to now, not what the kernel
// remembers.
func lookAfresh(folder, name string) (uint64, error) {
	const flags = unix.AT_STATX_FORCE_SYNC | unix.AT_SYMLINK_NOFOLLOW
	var st unix.Statx_t
	path := folder
	err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_BASIC_STATS, &st)
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if err != nil || part == "" {
			break
		}
		path += "/" + part
		err = unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_BASIC_STATS, &st)
	}
	return st.Ino, err
}

// hidden is how an NFS client calls a file that was removed while it is open. It removes the
// file when the last process here closes it, although the target's may still have it open.
const hidden = ".nfs"

// misnamed reports whether a file of a network file system is no longer found by its name.
// The kernel may remember names that were removed or replaced elsewhere, so it is made to
// ask for each part of the path.
func (j *job) misnamed(pid int, name string, inode uint64) bool {
	if isHidden(name) {
		return true
	}
	folder := fmt.Sprintf("/proc/%d/root%s", pid, j.At)
	now, err := lookAfresh(folder, strings.TrimPrefix(name, j.At))
	if err != nil {
		_, ended := os.Stat(folder) // the process has ended if that fails
		return ended == nil
	}
	return now != inode
}

func isHidden(name string) bool { return strings.HasPrefix(filepath.Base(name), hidden) }

// keptPrefix begins every name that keepName gives.
const keptPrefix = hidden + ".pagurus"

// KeptName is another name for a hidden file, in a folder of the container. A target hears it from the source, which
// may be in wrong hands: no link is followed, and nothing else is opened or removed.
type KeptName struct{ At, Name string }

// Forget removes the name below the host's folder for At. One that is gone is not an error.
func (k KeptName) Forget(folder string) error {
	base, err := os.OpenFile(folder, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer base.Close()
	dir, err := k.within(base, filepath.Dir(k.Name), unix.O_DIRECTORY)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Unlinkat(dir, filepath.Base(k.Name), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the name %.200q: %w", k.Name, err)
	}
	return nil
}

// within opens something below a folder, by no link, if the name is one that keepName gives.
func (k KeptName) within(base *os.File, name string, flags uint64) (int, error) {
	if !filepath.IsLocal(k.Name) || !strings.HasPrefix(filepath.Base(k.Name), keptPrefix) {
		return -1, fmt.Errorf("%.200q is no name that a host keeps for a removed file", k.Name)
	}
	fd, err := unix.Openat2(int(base.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open %.200q: %w", name, err)
	}
	return fd, nil
}

// keepName gives a hidden file another name, by which the target opens it, and returns that,
// from the folder. Otherwise the file would be gone from the server when the source's kernel
// removes it, and useless to whoever has it open. The target removes the name as soon as it
// has the file open: then its kernel hides the file in turn, until the last process there
// closes it. For other files keepName returns "".
func (j *job) keepName(pid int, name string) (string, error) {
	if !j.Remote || !isHidden(name) {
		return "", nil
	}
	// Opened at an earlier move it has a path from the folder.
	name = strings.TrimPrefix(strings.TrimPrefix(name, j.At), "/")
	root := fmt.Sprintf("/proc/%d/root%s/", pid, j.At)
	kept := filepath.Join(filepath.Dir(name), fmt.Sprintf("%s%016x", keptPrefix, rand.Uint64()))
	if err := os.Link(root+name, root+kept); err != nil {
		return "", fmt.Errorf("keep a name for the removed file %s/%s: %w", j.At, name, err)
	}
	return kept, nil
}
