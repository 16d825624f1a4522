package jail

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pagurus/internal/note"
)

// HoldFile opens a file or folder for a jail's File.Tree, whatever its path is by then. Linux mounts no file that has no name any more, as one
// that was replaced by an update: a copy of it is made in folder then.
func HoldFile(path, folder string) (tree *os.File, err error) {
	if path, err = lasting(path, folder); err != nil {
		return nil, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("hold on to %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// lasting is the path of a file, or of its copy.
func lasting(program, folder string) (string, error) {
	from, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer from.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil || st.Nlink > 0 {
		return program, err
	}
	path := filepath.Join(folder, "program")
	text, err := io.ReadAll(from)
	if err == nil {
		err = note.Write(path, text, 0o755)
	}
	return path, err
}
