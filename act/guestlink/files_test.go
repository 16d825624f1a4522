package guestlink

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pagurus/fleet"
)

// lists is a server with so many open files.
type lists struct {
	Server
	files int
}

func (l lists) OpenFiles(context.Context) (out fleet.OpenFiles, err error) {
	for i := range l.files {
		out.Files = append(out.Files, fleet.OpenFile{At: "/home/x", Name: fmt.Sprintf("/%s%d", strings.Repeat("n", 100), i)})
	}
	return fleet.OpenFiles{Files: out.Files, Amiss: []string{"one"}}, nil
}

// As many open files as fit an answer are told, and how many are not.
func TestOpenFilesFitAnAnswer(t *testing.T) {
	for n, left := range map[int]bool{0: false, 3: false, 5000: true} {
		got, err := openFiles(t.Context(), lists{files: n})
		if err != nil || left != (len(got.Files) < n) || left != strings.Contains(got.Amiss[0], fmt.Sprintf("%d more files", n-len(got.Files))) {
			t.Errorf("%d: %d files, %v, %v", n, len(got.Files), got.Amiss, err)
		}
	}
	if _, err := openFiles(t.Context(), Server(nil)); err == nil {
		t.Error("a guest agent that cannot tell says nothing")
	}
}
