package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container"
	"pagurus/act/host/written"
	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/agent"
)

// A host that mounts a job's files has the one that serves them clone them, with the rights of the job's user, and puts them back by
// itself. Clones that the controller does not name go.
func TestFilesClonedByTheirServer(t *testing.T) {
	const user = 4711
	dir := testkit.Reflinks(t, "btrfs")
	for above := filepath.Dir(dir); above != os.TempDir() && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own, other := filepath.Join(dir, "own"), filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(own, []byte("at the cut"), 0o644), os.WriteFile(other, []byte("root's"), 0o600), os.Chown(own, user, user), os.Chown(dir, user, user)); err != nil {
		t.Fatal(err)
	}
	open := fleet.OpenFiles{Amiss: []string{"own is odd"}}
	for _, path := range []string{own, other} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		open.Files = append(open.Files, fleet.OpenFile{At: dir, Name: "/" + filepath.Base(path), Inode: st.Ino, Bytes: st.Size, Inside: true, Odd: filepath.Base(path) + " is odd"})
	}
	server, share := jobFiles{}, fleet.Share{Export: dir, UID: user, GID: user}
	in, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	of := fleet.ClonesOf("j1c1", 7)
	mounted := openedFiles{
		busy: &sync.WaitGroup{}, all: []container.Files{{At: dir, Dir: in, Remote: true, Identity: jobServer}}, clones: written.Clones{Of: of, User: written.Owner{UID: user, GID: user}},
		ask: func(ctx context.Context, what string, body []byte) ([]byte, error) {
			asked = append(asked, what)
			return server.Answer(ctx, agent.FileQuestion{Job: "j1", Share: share, What: what, Body: body})
		},
	}
	defer func() { _ = mounted.Close() }()
	if err := mounted.Ready(open, time.Minute); err != nil {
		t.Fatal(err)
	}
	if over := mounted.HandOver(open); !reflect.DeepEqual(over, open) {
		t.Errorf("%+v", over)
	}
	if err := os.Rename(other, other+".away"); err != nil {
		t.Fatal(err)
	}
	if over := mounted.HandOver(open); over.Files[1].Inside || !over.Files[0].Inside || !strings.Contains(strings.Join(over.Amiss, ""), "did not come to the host that serves it") {
		t.Errorf("%+v", over)
	}
	if err := os.Rename(other+".away", other); err != nil {
		t.Fatal(err)
	}
	cut, err := mounted.Measure(open)
	if err != nil || cut.Clones != 1 || len(cut.Amiss) != 1 || !strings.Contains(cut.Amiss[0], "/other: ") {
		t.Fatalf("%+v, %s, %v", cut, cut.Files, err)
	}
	if err := mounted.Sync(cut.Files); err != nil || !slices.Equal(asked, []string{askReady, askClone, askSync}) {
		t.Errorf("%v, %v", asked, err)
	}
	if err := os.WriteFile(own, []byte("later, and longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if gone, err := mounted.PutBack(cut.Files); err != nil || len(gone) != 0 {
		t.Error(gone, err)
	}
	if text, err := os.ReadFile(own); string(text) != "at the cut" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := server.Answer(t.Context(), agent.FileQuestion{Job: "j2", Share: share, What: askClone, Body: []byte(`{"of":"` + of + `"}`)}); err == nil {
		t.Error("another job's clones are made")
	}
	k := fleet.JobClones{Job: "j1", Born: 7, Last: 1, Keep: []fleet.CheckpointID{"j1c1"}, Share: share}
	for _, keep := range []bool{true, false} {
		if !keep {
			k.Keep = nil
		}
		if err := server.KeepClones(t.Context(), k); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, written.ClonesFolder)); (err == nil) != keep {
			t.Errorf("kept %v: %v", keep, err)
		}
	}
}
