package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/image"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/serve/controller"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// holding is a controller that has images, and gives them to others over a real socket.
type holding struct {
	images *image.Store
	dir    string
	other  controller.Other
	mirror *mirror
	end    func()
}

// headsOf are controllers of which each knows the others.
func headsOf(t *testing.T, n int) (out []*holding) {
	t.Helper()
	a, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		k := &holding{dir: t.TempDir()}
		if k.images, err = image.Open(k.dir); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c := controller.New(controller.Config{Images: k.images, Spool: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			over <- wire.Serve(ctx, wire.ServeConfig{Listeners: []net.Listener{wire.OverTLS(l, a)}, Between: c.Between(), Log: slog.New(slog.DiscardHandler), Passing: &wire.Passing{
				Calling: a.Calling("k"), IsController: func(c *x509.Certificate) bool { return a.IsController(c, time.Now()) },
				Leads: func(context.Context) (string, bool) { return "", false },
			}})
		}()
		k.end = func() { stop(); <-over }
		k.other = controller.Other{Name: fmt.Sprint("c", i+1), Client: wire.CallController(l.Addr().String(), a.Calling("k"))}
		k.mirror = &mirror{images: k.images, leading: func() bool { return false }, said: map[string]string{}, log: slog.New(slog.DiscardHandler),
			load: func(context.Context) (fleet.Snapshot, error) { return fleet.NewSnapshot(), nil },
			others: func() (others []controller.Other) {
				for _, o := range out {
					if o != k {
						others = append(others, o.other)
					}
				}
				return others
			}}
		out = append(out, k)
	}
	return out
}

// build puts an image where `pagurus image build` does.
func (k *holding) build(t *testing.T, name, content string, at time.Time) fleet.Image {
	t.Helper()
	var list strings.Builder
	for _, file := range []string{image.ModulesFile, image.RootFile, image.KernelFile} {
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256([]byte(content)), file)
	}
	img := fleet.Image{Name: name, Digest: fleet.Digest(fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(list.String())))), Built: at}
	folder := k.images.Folder(img.Digest)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{image.ModulesFile, image.RootFile, image.KernelFile} {
		if err := os.WriteFile(filepath.Join(folder, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := note.Replace(filepath.Join(folder, image.LabelFile), img)
	if err = errors.Join(err, note.Replace(filepath.Join(k.dir, "names", name+".json"), img)); err != nil {
		t.Fatal(err)
	}
	return img
}

// has fails unless the image of a name is an image, whose files are there.
func (k *holding) has(t *testing.T, want fleet.Image) {
	t.Helper()
	got, err := k.images.Find(want.Name)
	if err != nil || got.Digest != want.Digest {
		t.Errorf("%s has %+v, %v", k.other.Name, got, err)
	}
}

// TestImagesSurviveTheirBuilder: an image is at every controller when the one that built it is lost, also one that was built again;
// builds that no job needs go.
func TestImagesSurviveTheirBuilder(t *testing.T) {
	all, now := headsOf(t, 3), time.Now()
	one, two, three := all[0], all[1], all[2]
	old := one.build(t, "openmpi", "old", now.Add(-time.Hour))
	kept := one.build(t, "mpich", "kept", now.Add(-time.Hour))
	two.mirror.turn(t.Context())
	two.has(t, old)
	needed := fleet.NewSnapshot()
	needed.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning, Digest: old.Digest}
	two.mirror.load = func(context.Context) (fleet.Snapshot, error) { return needed, nil }
	built := one.build(t, "openmpi", "new", now)
	two.mirror.turn(t.Context())
	one.end()

	two.has(t, built)
	two.has(t, kept)
	if !two.images.Has(old.Digest) {
		t.Error("the image of a running job went")
	}
	// The third one was away until now, and leads: a host asks it for what a running job needs, somebody for what was just built.
	three.mirror.leading = func() bool { return true }
	if err := three.mirror.seek(t.Context(), "", old.Digest); err != nil || !three.images.Has(old.Digest) {
		t.Errorf("the image of a running job is not fetched: %v", err)
	}
	if err := three.mirror.seek(t.Context(), "openmpi", ""); err != nil {
		t.Error(err)
	}
	three.has(t, built)
	if err := three.mirror.seek(t.Context(), "mpich", ""); err == nil {
		t.Error("an image that may have been removed here is fetched for its name")
	}
	three.mirror.leading = func() bool { return false }
	three.mirror.turn(t.Context())
	three.has(t, kept)

	needed.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobEnded, Digest: old.Digest}
	again := three.build(t, "openmpi", "again", now.Add(time.Second))
	two.mirror.turn(t.Context())
	two.has(t, again)
	if two.images.Has(old.Digest) || two.images.Has(built.Digest) {
		t.Error("builds that no job needs stay")
	}
}

// TestImagesLeaveRoom: an image that would take what the store needs is not fetched, and the log says so once.
func TestImagesLeaveRoom(t *testing.T) {
	all := headsOf(t, 2)
	img := all[0].build(t, "openmpi", "content", time.Now())
	var said strings.Builder
	all[1].mirror.reserve, all[1].mirror.log = 1<<60, slog.New(slog.NewTextHandler(&said, nil))
	all[1].mirror.turn(t.Context())
	all[1].mirror.turn(t.Context())
	if all[1].images.Has(img.Digest) || strings.Count(said.String(), "the disk has no room for its") != 1 {
		t.Errorf("said: %s", said.String())
	}
	all[1].mirror.reserve = 0
	all[1].mirror.turn(t.Context())
	all[1].has(t, img)
}

// TestImagesOfOthersCount: an image that is beyond its user's share here is not fetched, the log says what to remove, and another user's is.
func TestImagesOfOthersCount(t *testing.T) {
	all := headsOf(t, 2)
	label := func(name string, uid uint32, mib int64) fleet.Image {
		img := all[0].build(t, name, name, time.Now())
		img.UID, img.Bytes = uid, mib<<20
		if err := errors.Join(note.Replace(filepath.Join(all[0].dir, "names", name+".json"), img), note.Replace(filepath.Join(all[0].images.Folder(img.Digest), image.LabelFile), img)); err != nil {
			t.Fatal(err)
		}
		return img
	}
	large, small := label("large", 7, 60), label("small", 8, 30)
	var said strings.Builder
	all[1].mirror.limits, all[1].mirror.log = fleet.ImageLimits{Each: 50 << 20}, slog.New(slog.NewTextHandler(&said, nil))
	all[1].mirror.turn(t.Context())
	all[1].has(t, small)
	if all[1].images.Has(large.Digest) || !strings.Contains(said.String(), "each user may have 50 MiB; `pagurus image rm` removes some") {
		t.Errorf("said: %s", said.String())
	}
	// These limits had room there for the large one and then the small one: what is left to others at the end is not left once more.
	all[1].mirror.limits = fleet.ImageLimits{All: 95 << 20}
	all[1].mirror.turn(t.Context())
	all[1].has(t, large)
}
