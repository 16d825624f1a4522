package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pagurus/fleet"
)

// The keys. IDs are escaped, so that none can form another's key.
const (
	family     = "/pagurus/v" // of all versions
	root       = "/pagurus/v1/"
	guardKey   = root + "revision" // written by every transaction; its modification revision is the snapshot's
	clusterKey = root + "cluster"
	leaders    = "/pagurus/leaders/"
	machines   = "/pagurus/machines/" // of the members' controllers, by member
)

// format is the guard's value. A higher number means that a newer Pagurus has used the
// store in an unknown format. It is raised when the meaning of what is stored changes. A new
// field or kind of object needs no higher number: reading is strict, and refuses it.
type format struct {
	Format int `json:"format"`
}

const formatNow = 1

func (f format) tooNew() error {
	return fmt.Errorf("the store is in format %d and this controller reads formats up to %d: a newer controller has used it; nothing was changed: upgrade this controller", f.Format, formatNow)
}

// storedHost is a host without its facts.
type storedHost struct {
	fleet.Host
	Facts *fleet.Facts `json:"facts,omitempty"`
}

// encode adds the operations of one changeset, including the guard's.
func (w *writer) encode(c fleet.Changeset) {
	w.put(guardKey, format{formatNow})
	if c.Cluster != nil {
		w.put(clusterKey, c.Cluster)
	}
	for _, h := range c.Hosts {
		w.put(key("hosts", h.ID), storedHost{Host: h})
	}
	puts(w, "guests", c.Guests, func(g fleet.Guest) fleet.GuestID { return g.ID })
	for _, j := range c.Jobs {
		w.putJob(j)
	}
	puts(w, "moves", c.Moves, func(m fleet.Move) fleet.MoveID { return m.ID })
	puts(w, "migrations", c.Migrations, func(m fleet.Migration) fleet.MigrationID { return m.ID })
	puts(w, "checkpoints", c.Checkpoints, func(c fleet.Checkpoint) fleet.CheckpointID { return c.ID })
	puts(w, "users", c.Users, func(u fleet.User) fleet.UserID { return u.ID })
	puts(w, "tokens", c.Tokens, func(t fleet.JoinToken) fleet.TokenID { return t.ID })
	deletes(w, "hosts", c.GoneHosts)
	deletes(w, "guests", c.GoneGuests)
	deletes(w, "jobs", c.GoneJobs)
	for _, id := range c.GoneJobs {
		w.dropSpec(id)
	}
	deletes(w, "moves", c.GoneMoves)
	deletes(w, "migrations", c.GoneMigrations)
	deletes(w, "checkpoints", c.GoneCheckpoints)
	deletes(w, "users", c.GoneUsers)
	deletes(w, "tokens", c.GoneTokens)
}

// writer collects operations; etcd refuses two on one key, so a later one replaces an
// earlier one, as in fleet.Snapshot.Apply.
type writer struct {
	ops  []clientv3.Op
	seen map[string]int
	err  error

	known, apart map[fleet.JobID]fleet.Digest // specifications that are apart, before and after; known is nil: nobody knows
}

func (w *writer) put(key string, object any) {
	value, err := json.Marshal(object)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("encoding %s: %w", key, err)
	}
	w.add(key, clientv3.OpPut(key, string(value)))
}

func (w *writer) add(key string, op clientv3.Op) {
	if w.seen == nil {
		w.seen = map[string]int{}
	}
	if i, twice := w.seen[key]; twice {
		w.ops[i] = op
		return
	}
	w.seen[key] = len(w.ops)
	w.ops = append(w.ops, op)
}

func puts[T any, ID ~string](w *writer, kind string, objects []T, id func(T) ID) {
	for _, o := range objects {
		w.put(key(kind, id(o)), o)
	}
}

func deletes[ID ~string](w *writer, kind string, ids []ID) {
	for _, id := range ids {
		k := key(kind, id)
		w.add(k, clientv3.OpDelete(k))
	}
}

func key[ID ~string](kind string, id ID) string {
	return root + kind + "/" + url.PathEscape(string(id))
}

// decode adds one stored object to the snapshot.
func (r *reading) decode(at string, value []byte, revision int64) error {
	s := &r.snap
	kind, id, _ := strings.Cut(strings.TrimPrefix(at, root), "/")
	switch {
	case at == guardKey:
		var f format
		if err := read(at, value, &f); err != nil {
			return err
		}
		if f.Format > formatNow {
			return f.tooNew()
		}
		s.Revision = revision
		return nil
	case at == clusterKey:
		return read(at, value, &s.Cluster)
	case !strings.HasPrefix(at, root):
		return newer(at, fmt.Errorf("its layout is not %s", root))
	}
	switch kind {
	case "hosts":
		return object(s.Hosts, at, id, value, func(h fleet.Host) fleet.HostID { return h.ID })
	case "guests":
		return object(s.Guests, at, id, value, func(g fleet.Guest) fleet.GuestID { return g.ID })
	case "jobs":
		return r.job(at, id, value)
	case "specs":
		return r.spec(at, id, value)
	case "moves":
		return object(s.Moves, at, id, value, func(m fleet.Move) fleet.MoveID { return m.ID })
	case "migrations":
		return object(s.Migrations, at, id, value, func(m fleet.Migration) fleet.MigrationID { return m.ID })
	case "checkpoints":
		return object(s.Checkpoints, at, id, value, func(c fleet.Checkpoint) fleet.CheckpointID { return c.ID })
	case "users":
		return object(s.Users, at, id, value, func(u fleet.User) fleet.UserID { return u.ID })
	case "tokens":
		return object(s.Tokens, at, id, value, func(t fleet.JoinToken) fleet.TokenID { return t.ID })
	}
	return newer(at, fmt.Errorf("there is no kind of object %q", kind))
}

func object[T any, ID ~string](into map[ID]T, at, id string, value []byte, named func(T) ID) error {
	var o T
	if err := read(at, value, &o); err != nil {
		return err
	}
	if own := named(o); own == "" || url.PathEscape(string(own)) != id {
		return damaged(at, fmt.Errorf("it calls itself %q", own))
	}
	into[named(o)] = o
	return nil
}

// mostRanks is above the planner's limit for a job.
const mostRanks = 1 << 20

// sound refuses impossible numbers, because other code trusts them for allocations.
func sound(at string, j fleet.Job) error {
	switch {
	case j.Spec.Guests < 1 || j.Spec.Guests > fleet.MaxGuestsPerJob:
		return damaged(at, fmt.Errorf("it has %d guests, which is not 1 to %d", j.Spec.Guests, fleet.MaxGuestsPerJob))
	case j.Grown < 0 || j.Spec.Grow < 0 || j.Grown > fleet.MaxGuestsPerJob || j.Spec.Grow > fleet.MaxGuestsPerJob:
		return damaged(at, fmt.Errorf("it has grown by %d guests of %d, which is not 0 to %d", j.Grown, j.Spec.Grow, fleet.MaxGuestsPerJob))
	case j.Spec.Ranks < 1 || j.Spec.Ranks > mostRanks:
		return damaged(at, fmt.Errorf("it has %d ranks, which is not 1 to %d", j.Spec.Ranks, mostRanks))
	case j.Subnet > fleet.MostSubnet:
		return damaged(at, fmt.Errorf("its network has the number %d, above %d", j.Subnet, fleet.MostSubnet))
	}
	return nil
}

// read is strict: an unknown field would be lost when the object is written again.
func read(at string, value []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		// Whatever reads without its unknown fields has them from somebody who knows them.
		if json.Unmarshal(value, into) == nil {
			return newer(at, err)
		}
		return damaged(at, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return damaged(at, fmt.Errorf("more data follows the object"))
	}
	return nil
}

func newer(at string, why error) error {
	return fmt.Errorf("cannot understand %s in the store: %w; a newer controller wrote it; nothing was changed: upgrade this controller, or restore a copy from before that one", at, why)
}

func damaged(at string, why error) error {
	return fmt.Errorf("cannot understand %s in the store: %w; it is damaged, or a newer controller wrote it; nothing was changed: restore a copy, or upgrade this controller", at, why)
}
