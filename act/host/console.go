package host

import (
	"io"
	"os"
	"regexp"
	"strings"
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
func Tail(f *os.File) string {
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if info.Size() > tailBytes {
		f.Seek(-tailBytes, io.SeekEnd)
	}
	text, err := io.ReadAll(io.LimitReader(f, tailBytes))
	if err != nil {
		return ""
	}
	var all []string
	for _, line := range strings.FieldsFunc(strings.ToValidUTF8(string(text), ""), func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(escapes.ReplaceAllString(line, "")); line != "" {
			all = append(all, line)
		}
	}
	return strings.Join(all[max(0, len(all)-tailLines):], "; ")
}
