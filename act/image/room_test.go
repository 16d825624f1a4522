package image

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"pagurus/fleet"
)

// An image is built, or gets another name, only where there is room for its user, and what is refused changes nothing. Another user's goes on.
func TestNoImageWithoutRoom(t *testing.T) {
	s := openStore(t)
	old := put(t, s, "one", "root")
	full := errors.New("this user has too much")
	var asked []fleet.Image
	room := func(there []fleet.Image, more fleet.Image) error {
		if len(there) == 0 || there[0].Name != "one" {
			return fmt.Errorf("there are %v", there)
		}
		asked = append(asked, more)
		if more.UID == 7 {
			return full
		}
		return nil
	}
	recipe := Recipe{Name: "two", Suite: "trixie", Packages: []string{"root"}, UID: 7, Room: room}
	before := tree(t, s)
	if _, err := s.Build(t.Context(), recipe, nil); !errors.Is(err, full) || !strings.Contains(err.Error(), `"two"`) {
		t.Errorf("another name: %v", err)
	}
	if len(asked) != 1 || asked[0].Name != "two" || asked[0].UID != 7 || asked[0].Bytes != old.Bytes {
		t.Errorf("asked about %+v", asked)
	}
	if after := tree(t, s); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("a refusal left %v", after)
	}
	if err := s.roomFor(fleet.Image{Name: "new", UID: 7}, room); !errors.Is(err, full) {
		t.Errorf("before a build: %v", err)
	}
	recipe.UID = 8
	img, err := s.Build(t.Context(), recipe, nil)
	if err != nil || img.UID != 8 || img.Digest != old.Digest {
		t.Errorf("another user's is %+v, %v", img, err)
	}
	// The name is there: nothing is taken, and it counts for whom it did.
	recipe.UID = 7
	if img, err := s.Build(t.Context(), recipe, nil); err != nil || img.UID != 8 {
		t.Errorf("again it is %+v, %v", img, err)
	}
}

// A build ends before it takes the last of a disk that others need.
func TestABuildLeavesRoomForOthers(t *testing.T) {
	s := openStore(t)
	building, over := s.keepFree(t.Context(), 1<<60)
	defer over()
	<-building.Done()
	if err := context.Cause(building); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("it ended by %v", err)
	}
	err := s.explain(t.Context(), Recipe{Name: "x", Reserve: 192 << 20}, context.Cause(building))
	if !strings.Contains(err.Error(), "is full, but for 192 MiB that are kept free for others: a build needs") {
		t.Errorf("it says %v", err)
	}
	free, over := s.keepFree(t.Context(), 1)
	if free.Err() != nil {
		t.Error("a build on a free disk ended")
	}
	over()
}
