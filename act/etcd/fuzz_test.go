package etcd

import (
	"encoding/json"
	"testing"

	"pagurus/fleet"
)

// FuzzRow: whatever is in the store, it is an object of that name, or an error; what is read is written under the same key.
func FuzzRow(f *testing.F) {
	f.Add("hosts/host1", []byte(`{"id":"host1","state":"up","since":"2026-01-01T00:00:00Z","facts":{"seen_at":"0001-01-01T00:00:00Z","connected":false,"capacity":{"cpus":0,"memory_bytes":0},"load_cpus":0}}`))
	f.Add("guests/j1g0", []byte(`{"id":"j1g0","job":"j1","gen":3}`))
	f.Add("jobs/j1", []byte(`{"id":"j1","spec":{"guests":1,"ranks":1}}`))
	f.Add("jobs/j1", []byte(`{"id":"j1","apart":"sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`))
	f.Add("specs/j1", []byte(`{"job":"j1","spec":{"guests":1,"ranks":1}}`))
	f.Add("users/a%2Fb", []byte(`{"id":"a/b"}`))
	f.Add("tokens/x", []byte(`{"id":"y"}`))
	f.Add("moves/%", []byte(`{}`))
	f.Add("../x", []byte(`{}`))
	f.Fuzz(func(t *testing.T, at string, value []byte) {
		r := newReading()
		if r.decode(root+at, value, 1) != nil {
			return
		}
		s, err := r.whole()
		if err != nil {
			return
		}
		var c fleet.Changeset
		for _, h := range s.Hosts {
			c.Hosts = append(c.Hosts, h)
		}
		for _, g := range s.Guests {
			c.Guests = append(c.Guests, g)
		}
		for _, j := range s.Jobs {
			if c.Jobs = append(c.Jobs, j); j.Spec.Guests < 1 || j.Spec.Ranks < 1 || j.Subnet > fleet.MostSubnet {
				t.Errorf("job %+v is sound", j)
			}
		}
		for _, u := range s.Users {
			c.Users = append(c.Users, u)
		}
		if _, err := json.Marshal(c); err != nil {
			return // a time that cannot be written
		}
		ops, _, err := new(specs).encode(0, c)
		if err != nil {
			t.Fatalf("%s cannot be written: %v", at, err)
		}
		found := len(c.Hosts)+len(c.Guests)+len(c.Jobs)+len(c.Users) == 0
		for _, op := range ops {
			found = found || string(op.KeyBytes()) == root+at
		}
		if !found {
			t.Errorf("what was at %q is written elsewhere", at)
		}
	})
}
