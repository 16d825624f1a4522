package etcd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pagurus/fleet"
)

// saved writes a copy of the store to a file.
func saved(t *testing.T, ctx context.Context, s *Store) string {
	t.Helper()
	dir := t.TempDir()
	f, err := s.SnapshotFile(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left in the folder: %v", left)
	}
	path := filepath.Join(t.TempDir(), "store.db")
	out, err := os.Create(path)
	if err == nil {
		_, err = io.Copy(out, f)
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A copy that is made while the store is written has everything that was committed before, and
// each change whole. Of it comes a store that is written on, at a later revision.
func TestCopyAndRestore(t *testing.T) {
	ctx := contract(t)
	for name, s := range map[string]*Store{"embedded": opened(t, ctx, t.TempDir()), "external": external(t, ctx, 0)} {
		t.Run(name, func(t *testing.T) {
			before := loaded(t, ctx, s)
			stop, ended := make(chan struct{}), make(chan int64)
			commit := func(at int64, n int) int64 {
				id := fmt.Sprint("host", n)
				next, err := s.Commit(ctx, at, fleet.Changeset{Hosts: []fleet.Host{{ID: fleet.HostID(id)}}, Users: []fleet.User{{ID: fleet.UserID(id)}}})
				if err != nil {
					t.Error(err)
				}
				return next
			}
			at := commit(before.Revision, 0)
			go func() {
				for n := 1; ; n++ {
					select {
					case <-stop:
						ended <- at
						return
					default:
						at = commit(at, n)
					}
				}
			}()
			path := saved(t, ctx, s)
			close(stop)
			last := <-ended
			dir := t.TempDir()
			if err := RestoreSnapshot(path, dir); err != nil {
				t.Fatal(err)
			}
			r := opened(t, ctx, dir)
			got := loaded(t, ctx, r)
			if got.Cluster.ID != before.Cluster.ID || len(got.Hosts) < 1 || len(got.Hosts) != len(got.Users) {
				t.Errorf("%d hosts, %d users, cluster %s", len(got.Hosts), len(got.Users), got.Cluster.ID)
			}
			next, err := r.Commit(ctx, got.Revision, fleet.Changeset{Jobs: []fleet.Job{{ID: "j1", Spec: fleet.JobSpec{Guests: 1, Ranks: 1}}}})
			if err != nil || next <= last {
				t.Errorf("revision %d, the store had %d: %v", next, last, err)
			}
			if held, err := Held(dir); err != nil || !held {
				t.Errorf("a store that is open is held: %v, %v", held, err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if held, err := Held(dir); err != nil || held {
				t.Errorf("a store that is closed is held: %v, %v", held, err)
			}
			if now := loaded(t, ctx, opened(t, ctx, dir)); len(now.Jobs) != 1 || now.Revision != next {
				t.Errorf("opened again: %+v", now)
			}
		})
	}
}

// A copy that is cut off or was altered becomes no store.
func TestDamagedCopy(t *testing.T) {
	ctx := contract(t)
	s := opened(t, ctx, t.TempDir())
	loaded(t, ctx, s)
	whole, err := os.ReadFile(saved(t, ctx, s))
	if err != nil {
		t.Fatal(err)
	}
	altered := append([]byte(nil), whole...)
	altered[len(altered)/2] ^= 1
	for name, bytes := range map[string][]byte{"empty": nil, "cut off": whole[:len(whole)-4096], "altered": altered, "foreign": []byte(strings.Repeat("no store ", 1000))} {
		path := filepath.Join(t.TempDir(), "copy")
		if err := os.WriteFile(path, bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := RestoreSnapshot(path, t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), "restoring the store: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An external store gets all of a snapshot and keeps nothing else.
func TestReplace(t *testing.T) {
	ctx := contract(t)
	s := external(t, ctx, 0)
	if empty, err := s.Empty(ctx); err != nil || !empty {
		t.Fatalf("empty: %v, %v", empty, err)
	}
	had := loaded(t, ctx, s)
	if _, err := s.Commit(ctx, had.Revision, fleet.Changeset{Hosts: []fleet.Host{{ID: "stays"}, {ID: "goes"}}}); err != nil {
		t.Fatal(err)
	}
	with := fleet.NewSnapshot()
	with.Cluster = fleet.Cluster{ID: "other", NextJob: 7}
	with.Hosts["stays"], with.Hosts["comes"] = fleet.Host{ID: "stays", Number: 3}, fleet.Host{ID: "comes"}
	with.Users["ada"] = fleet.User{ID: "ada"}
	if err := s.Replace(ctx, with); err != nil {
		t.Fatal(err)
	}
	got := loaded(t, ctx, s)
	if !reflect.DeepEqual(got.Hosts, with.Hosts) || !reflect.DeepEqual(got.Users, with.Users) || got.Cluster != with.Cluster {
		t.Errorf("got %+v", got)
	}
	if empty, err := s.Empty(ctx); err != nil || empty {
		t.Errorf("empty: %v, %v", empty, err)
	}
}
