package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

const peerName = "controller.test"

// authority makes certificates of one authority.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// files makes a certificate for a DNS name.
func (a *authority) files(t *testing.T, name string) PeerFiles {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, form, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return PeerFiles{Certificate: write("crt", "CERTIFICATE", der), Key: write("key", "PRIVATE KEY", secret), Authority: write("ca", "CERTIFICATE", a.cert.Raw), ServerName: peerName}
}

// freePort is an address that nobody uses now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// trio is three members of one store, each with its folder.
type trio struct {
	t       *testing.T
	configs [3]EmbedConfig
	stores  [3]*Store
}

// newTrio starts the first member; the others join as they would.
func newTrio(t *testing.T, ctx context.Context) *trio {
	a := newAuthority(t)
	out := &trio{t: t}
	for i := range out.configs {
		at := freePort(t)
		out.configs[i] = EmbedConfig{Dir: t.TempDir(), Peer: Peer{
			Name: fmt.Sprint("c", i+1), Listen: at, Advertise: at, Serves: fmt.Sprint("192.0.2.", i+1, ":7461"), Machine: fmt.Sprint("m", i+1), Files: a.files(t, peerName),
		}}
	}
	t.Cleanup(func() {
		for i := range out.stores {
			out.stop(i)
		}
	})
	out.start(ctx, 0)
	return out
}

func (c *trio) grow(ctx context.Context) {
	for i := 1; i < len(c.configs); i++ {
		join, err := c.stores[0].Admit(ctx, c.configs[i].Peer.Name, c.configs[i].Peer.Advertise)
		if err != nil {
			c.t.Fatal(err)
		}
		c.configs[i].Peer.Join = join
		c.start(ctx, i)
	}
}

func (c *trio) start(ctx context.Context, i int) {
	c.t.Helper()
	var err error
	if c.stores[i], err = Embed(ctx, c.configs[i]); err != nil {
		c.t.Fatal(err)
	}
}

func (c *trio) stop(i int) {
	c.t.Helper()
	if c.stores[i] == nil {
		return
	}
	if err := c.stores[i].Close(); err != nil {
		c.t.Error(err)
	}
	c.stores[i] = nil
}

// add commits one more job.
func (c *trio) add(ctx context.Context, i int, id string) {
	c.t.Helper()
	s := c.stores[i]
	committed(c.t, ctx, s, loaded(c.t, ctx, s).Revision, fleet.Changeset{Jobs: []fleet.Job{job(id)}})
}

func (c *trio) jobs(ctx context.Context, i, want int) {
	c.t.Helper()
	if n := len(loaded(c.t, ctx, c.stores[i]).Jobs); n != want {
		c.t.Fatalf("member %d has %d jobs, not %d", i, n, want)
	}
}

// TestThreeMembers: members join with all of the store; it goes on while one is away, refuses changes
// while two are, and goes on when one of those is back.
func TestThreeMembers(t *testing.T) {
	ctx := contract(t)
	c := newTrio(t, ctx)
	c.add(ctx, 0, "j1")
	c.grow(ctx)
	for i := range c.stores {
		c.jobs(ctx, i, 1)
	}
	for i := range c.stores {
		c.add(ctx, i, fmt.Sprint("j", i+2))
	}
	members, err := c.stores[2].Members(ctx)
	if err != nil || len(members) != 3 {
		t.Fatalf("%v, %v", members, err)
	}
	for i, m := range members {
		if want := c.configs[i].Peer; m.Name != want.Name || m.Peer != want.Advertise || m.Serves != want.Serves || m.Machine != want.Machine || m.Learner {
			t.Errorf("member %+v is not %+v", m, want)
		}
	}

	c.stop(0) // the first one led etcd
	c.add(ctx, 1, "j5")
	c.stop(1)
	_, err = c.stores[2].Commit(ctx, 1, fleet.Changeset{Jobs: []fleet.Job{job("j6")}})
	if err == nil || !strings.Contains(err.Error(), "most of the controllers are away") {
		t.Fatalf("with one of three: %v", err)
	}
	t.Log(err)
	if known, err := c.stores[2].Members(ctx); err != nil || len(known) != 3 {
		t.Fatalf("%v, %v", known, err)
	}

	c.start(ctx, 0)
	c.add(ctx, 2, "j6")
	c.jobs(ctx, 0, 6)
	c.start(ctx, 1)
	c.jobs(ctx, 1, 6)

	snapshot, err := c.stores[1].SnapshotFile(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	file := filepath.Join(t.TempDir(), "copy")
	if err := os.Link(fmt.Sprint("/proc/self/fd/", snapshot.Fd()), file); err != nil { // it has no name
		content, err := os.ReadFile(fmt.Sprint("/proc/self/fd/", snapshot.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	alone := filepath.Join(t.TempDir(), "alone")
	if err := RestoreSnapshot(file, alone); err != nil {
		t.Fatal(err)
	}
	if n := len(loaded(t, ctx, opened(t, ctx, alone)).Jobs); n != 6 { // one member, of three
		t.Fatalf("the copy has %d jobs", n)
	}
}

// TestOneBecomesSeveral: a store of one member that listened nowhere gets peers.
func TestOneBecomesSeveral(t *testing.T) {
	ctx := contract(t)
	c := newTrio(t, ctx)
	c.stop(0)
	c.configs[0].Dir = t.TempDir()
	alone := opened(t, ctx, c.configs[0].Dir)
	committed(t, ctx, alone, loaded(t, ctx, alone).Revision, fleet.Changeset{Jobs: []fleet.Job{job("j1")}})
	if _, err := alone.Admit(ctx, "c2", c.configs[1].Peer.Advertise); err == nil || !strings.Contains(err.Error(), "--peer") {
		t.Fatalf("got %v", err)
	}
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	c.start(ctx, 0)
	c.grow(ctx)
	c.jobs(ctx, 2, 1)
	c.stop(0)
	c.add(ctx, 1, "j2")
}

// TestMemberRemoved: a member that was removed says so, also when it starts again; the others go on.
func TestMemberRemoved(t *testing.T) {
	ctx := contract(t)
	c := newTrio(t, ctx)
	c.grow(ctx)
	if _, err := c.stores[0].Admit(ctx, "c2", freePort(t)); err == nil || !strings.Contains(err.Error(), "already") {
		t.Fatalf("got %v", err)
	}
	if _, err := c.stores[0].Lead(ctx, "lead"); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := c.stores[2].Lead(ctx, "lead")
		waits <- err
	}()
	if err := c.stores[0].Remove(ctx, c.stores[2].Self()); err != nil {
		t.Fatal(err)
	}
	for ctx.Err() == nil {
		_, _ = c.stores[2].Members(ctx) // as its controller does; its database may be closed by now
		_, _ = c.stores[2].Candidates(ctx, "lead")
		if _, err := c.stores[2].Load(ctx); errors.Is(err, ErrRemoved) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := <-waits; !errors.Is(err, ErrRemoved) {
		t.Errorf("one that waits to lead: %v", err)
	}
	c.stop(2)
	if s, err := Embed(ctx, c.configs[2]); !errors.Is(err, ErrRemoved) {
		if err == nil {
			s.Close()
		}
		t.Fatalf("a removed member starts: %v", err)
	}
	c.add(ctx, 1, "j1")
	if members, err := c.stores[0].Members(ctx); err != nil || len(members) != 2 {
		t.Fatalf("%v, %v", members, err)
	}
	c.configs[2].Dir = t.TempDir() // emptied, it joins again
	join, err := c.stores[1].Admit(ctx, "c3", c.configs[2].Peer.Advertise)
	if err != nil {
		t.Fatal(err)
	}
	c.configs[2].Peer.Join = join
	c.start(ctx, 2)
	c.jobs(ctx, 2, 1)

	away := c.stores[1].Self() // it is removed while it is away
	c.stop(1)
	if err := c.stores[0].Remove(ctx, away); err != nil {
		t.Fatal(err)
	}
	if s, err := Embed(ctx, c.configs[1]); !errors.Is(err, ErrRemoved) {
		if err == nil {
			s.Close()
		}
		t.Fatalf("one that was removed while it was away starts: %v", err)
	}
}

// TestStrangerAmongPeers: who has another certificate of the same authority, as a host has, is not a member.
func TestStrangerAmongPeers(t *testing.T) {
	ctx := contract(t)
	a := newAuthority(t)
	at := freePort(t)
	s, err := Embed(ctx, EmbedConfig{Dir: t.TempDir(), Peer: Peer{Name: "c1", Listen: at, Advertise: at, Files: a.files(t, peerName)}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other := freePort(t)
	join, err := s.Admit(ctx, "c2", other)
	if err != nil {
		t.Fatal(err)
	}
	stranger := EmbedConfig{Dir: t.TempDir(), Peer: Peer{Name: "c2", Listen: other, Advertise: other, Files: a.files(t, "host.test"), Join: join}}
	soon, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if in, err := Embed(soon, stranger); err == nil {
		in.Close()
		t.Fatal("a stranger became a member")
	}
	if again, err := s.Admit(ctx, "c2", other); err != nil || again == "" { // it has never started
		t.Fatalf("%q, %v", again, err)
	}
}

// TestLeadAmongMembers: one leads; when it ends another does, and a commit of one that led before fails.
func TestLeadAmongMembers(t *testing.T) {
	ctx := contract(t)
	c := newTrio(t, ctx)
	c.grow(ctx)
	first, resign := context.WithCancel(ctx)
	defer resign()
	if _, err := c.stores[1].Lead(first, "controller"); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := c.stores[2].Lead(ctx, "controller")
		second <- err
	}()
	for {
		who, err := c.stores[0].Candidates(ctx, "controller")
		if err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		if len(who) == 2 {
			if want := (Candidate{"c2", "192.0.2.2:7461", c.stores[1].Self()}); who[0] != want {
				t.Fatalf("%+v leads", who[0])
			}
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	old := c.stores[1]
	snap := loaded(t, ctx, old)
	resign()
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if _, err := old.Commit(ctx, snap.Revision, fleet.Changeset{Jobs: []fleet.Job{job("j1")}}); err == nil || errors.Is(err, fleet.ErrConflict) {
		t.Fatalf("one that leads no more committed: %v", err)
	}
	c.add(ctx, 2, "j1")

	// A process of the same member does not wait for the lease of its predecessor, which was killed.
	if _, err := c.stores[0].Lead(ctx, "another"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := c.stores[0].Lead(ctx, "another"); err != nil || time.Since(began) > memberLease*time.Second {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
}

// TestMembersKilled: each of three processes is killed in turn while one commits; every commit that was
// answered is in the store.
func TestMembersKilled(t *testing.T) {
	ctx := contract(t)
	c := newTrio(t, ctx)
	c.grow(ctx)
	c.stop(0)
	child := exec.CommandContext(ctx, os.Args[0])
	p := c.configs[0].Peer
	child.Env = append(os.Environ(), "PAGURUS_TEST_STORE="+c.configs[0].Dir, "PAGURUS_TEST_PEER="+strings.Join([]string{p.Name, p.Listen, p.Files.Certificate, p.Files.Key, p.Files.Authority}, ","))
	last := killedAfter(t, child, 60)
	if n := len(loaded(t, ctx, c.stores[1]).Jobs); n != last+1 && n != last+2 {
		t.Fatalf("%d jobs answered, %d found", last+1, n)
	}
	c.add(ctx, 2, "more")
	c.start(ctx, 0)
	if a, b := loaded(t, ctx, c.stores[0]), loaded(t, ctx, c.stores[1]); len(a.Jobs) != len(b.Jobs) {
		t.Fatalf("%d and %d jobs", len(a.Jobs), len(b.Jobs))
	}
}

// TestLeadAfterMostWereAway: a candidate whose lease ends while most members are away goes on waiting, and leads when they are back.
func TestLeadAfterMostWereAway(t *testing.T) {
	ctx := contract(t)
	c := newTrio(t, ctx)
	c.grow(ctx)
	if _, err := c.stores[0].Lead(ctx, "controller"); err != nil {
		t.Fatal(err)
	}
	led := make(chan error, 1)
	go func() {
		_, err := c.stores[2].Lead(ctx, "controller")
		led <- err
	}()
	for {
		who, err := c.stores[2].Candidates(ctx, "controller")
		if err != nil {
			t.Fatal(err)
		}
		if len(who) == 2 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.stop(1)
	c.stop(0)
	select {
	case err := <-led:
		t.Fatalf("one of three leads, or gave up: %v", err)
	case <-time.After((memberLease + 4) * time.Second):
	}
	c.start(ctx, 1)
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	c.add(ctx, 2, "j1")
}
