package host

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// The limits of what Tail returns.
const (
	tailLines = 6
	tailBytes = 4096
)

// escapes matches what a kernel and programs send to a terminal, not to people.
var escapes = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

// Tail returns the last lines of a log or console, for people to read, or "" if it is
// empty. A guest may have put anything in the file's place, so Tail reads only a regular
// file. The caller must open it without following symbolic links and without blocking.
func Tail(f *os.File) string { return strings.Join(lastLines(end(f, tailBytes), tailLines), "; ") }

// end returns the last bytes of a regular file, at most so many; else none.
func end(f *os.File, most int64) []byte {
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	} else if info.Size() > most {
		f.Seek(-most, io.SeekEnd)
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil
	}
	return text
}

// lastLines returns the last lines that are not empty, without what a terminal obeys.
func lastLines(text []byte, most int) (all []string) {
	for _, line := range strings.FieldsFunc(strings.ToValidUTF8(string(text), ""), func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(escapes.ReplaceAllString(line, "")); line != "" {
			all = append(all, line)
		}
	}
	return all[max(0, len(all)-most):]
}

// OpenLog opens a file that a guest's process writes, or returns nil. The process may have replaced it by a link or a pipe.
func OpenLog(dir, name string) *os.File {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return f
}
