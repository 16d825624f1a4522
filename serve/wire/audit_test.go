package wire

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// kept is an audit in memory; act/audit has the one on disk.
type kept struct {
	mu      sync.Mutex
	all     []fleet.AuditRecord
	failing error // of reading to the end
}

func (k *kept) Append(r fleet.AuditRecord) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, r)
	return nil
}

func (k *kept) Read(_ context.Context, since time.Time, each func(fleet.AuditRecord) error) (int, error) {
	k.mu.Lock()
	all := slices.Clone(k.all)
	k.mu.Unlock()
	for _, r := range all {
		if r.At.Before(since) {
			continue
		}
		if err := each(r); err != nil {
			return 0, err
		}
	}
	return 3, k.failing
}

func TestAudit(t *testing.T) {
	k := &kept{}
	s := serve(t, &world{})
	s.stop()
	s.audit = k
	s.backup = func(_ context.Context, begin func() io.Writer) error {
		begin()
		return errors.New("the disk is broken")
	}
	s.start(t)
	ctx := limited(t)
	root, user := s.client(t), s.userClient(t, 1234)
	far := s.member(t, identity.Subject{Role: identity.User, Name: "ada"})
	host := s.member(t, identity.Subject{Role: identity.Host, Name: "host1"})
	begun := time.Now()
	if _, err := root.Ask(ctx, fleet.Request{Verb: fleet.Cancel, Job: "j1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Ask(ctx, fleet.Request{Verb: fleet.Drain, Host: "host1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := host.Ask(ctx, fleet.Request{Verb: fleet.Drain, Host: "host2"}); err == nil {
		t.Error("a host drained another")
	}
	if cut, err := root.Backup(ctx); err == nil {
		_, _ = io.Copy(io.Discard, cut)
		cut.Close()
	}
	if _, err := user.Audit(ctx, begun, nil); status(t, err) != http.StatusForbidden {
		t.Errorf("a user reads the audit: %v", err)
	}
	var got []string
	damaged, err := root.Audit(ctx, begun.Add(-time.Minute), func(r fleet.AuditRecord) error {
		result, _, _ := strings.Cut(r.Result(), ":")
		got = append(got, strings.Join([]string{r.Who(), cmp.Or(r.From, "here"), r.Did, r.On, result}, ", "))
		return nil
	})
	want := []string{
		"root, here, cancel, j1, done",
		"ada, 127.0.0.1, drain, j1 host1, done", // the controller of tests answers with j1
		"agent of host1, 127.0.0.1, ask for anything, /v1/ask, refused",
		"root, here, back up the cluster, , failed",
		"uid 1234, here, read the audit, /v1/audit, refused",
	}
	if err != nil || damaged != 3 || !slices.Equal(got, want) {
		t.Errorf("%d damaged, %v:\n%s", damaged, err, strings.Join(got, "\n"))
	}
	enough := errors.New("enough")
	if _, err := root.Audit(ctx, begun, func(fleet.AuditRecord) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("it reads on: %v", err)
	}
	k.failing = errors.New("the disk is broken")
	if _, err := root.Audit(ctx, begun, func(fleet.AuditRecord) error { return nil }); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("half an audit was taken for a whole one: %v", err)
	}
}

// Who tries again and again what they may not do does not fill the disk.
func TestManyRefusals(t *testing.T) {
	k := &kept{}
	s := serve(t, &world{})
	s.stop()
	s.audit = k
	s.start(t)
	user, ctx := s.userClient(t, 1234), limited(t)
	for range 3 * refusalsAtOnce {
		if _, err := user.Audit(ctx, time.Now(), nil); status(t, err) != http.StatusForbidden {
			t.Fatal(err)
		}
	}
	if n := len(k.all); n < refusalsAtOnce || n >= 3*refusalsAtOnce {
		t.Errorf("%d of %d refusals were kept", n, 3*refusalsAtOnce)
	}
}
