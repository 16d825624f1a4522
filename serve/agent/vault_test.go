package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/vault"
	"pagurus/fleet"
	"pagurus/serve/identity"
)

// joined makes the credentials of a member of a cluster.
func joined(t *testing.T, a *identity.Authority, s identity.Subject) *identity.Credentials {
	t.Helper()
	dir := t.TempDir()
	request, err := identity.Request(dir)
	if err != nil {
		t.Fatal(err)
	}
	crt, err := a.Sign(request, s, time.Now())
	if err == nil {
		err = identity.Save(dir, crt, a.Certificate(), identity.Login{Controller: "head:1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := identity.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func authority(t *testing.T) *identity.Authority {
	t.Helper()
	a, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// storeVault is the real store, as the program has it.
type storeVault struct{ *vault.Store }

func (v storeVault) Own(most int64) Chunks { return v.Bounded(most) }

func (v storeVault) Back(manifest fleet.Digest, most int64) Chunks {
	return v.Store.Back(manifest, most)
}

func (v storeVault) Save(ctx context.Context, folder string, p fleet.PartName, to Chunks) (fleet.KeptState, error) {
	put, err := vault.Save(ctx, folder, p, to)
	return fleet.KeptState{Manifest: put.Manifest, Bytes: put.Bytes, NewBytes: put.NewBytes}, err
}

func (v storeVault) Load(ctx context.Context, want fleet.KeptPart, from Chunks, folder string) error {
	return vault.Load(ctx, want, from, folder)
}

// vaultHost is a host that serves its vault to others, with patience if some is given.
func vaultHost(t *testing.T, c *identity.Credentials, quota int64, patience ...time.Duration) (a *Agent, address string) {
	t.Helper()
	s, err := vault.Open(vault.Config{Folder: t.TempDir(), Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := Vaults{Own: storeVault{s}, Listener: l, Credentials: c}
	for _, v.patience = range patience {
	}
	a = New(Config{Host: "stock", Run: t.TempDir(), Vaults: v, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { defer close(over); a.serveVault(ctx) }()
	t.Cleanup(func() { cancel(); <-over; s.Close() })
	return a, l.Addr().String()
}

func (a *Agent) grant(all ...fleet.VaultGrant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted = &fleet.Wanted{VaultGrants: all}
}

// Another host puts and gets exactly what the controller ordered.
func TestAnotherHostsVault(t *testing.T) {
	cluster := authority(t)
	host := func(name string) *identity.Credentials {
		return joined(t, cluster, identity.Subject{Role: identity.Host, Name: name})
	}
	a, at := vaultHost(t, host("stock"), 8<<20)
	p, ctx := fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, t.Context()
	mine := newVaultClient(host("home").Calling("stock"), "stock", func() (string, error) { return at, nil })
	defer mine.close()
	folder := t.TempDir()
	memory := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory)
	if err := os.WriteFile(filepath.Join(folder, "memory"), memory, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, to Chunks, part fleet.PartName) {
		t.Helper()
		if _, err := vault.Save(ctx, folder, part, to); err == nil {
			t.Errorf("%s: saved", what)
		}
		if _, err := to.Manifest(ctx, part); err == nil {
			t.Errorf("%s: read", what)
		}
	}
	refused("without an order", mine, p)
	a.grant(fleet.VaultGrant{Checkpoint: p.Checkpoint, Guest: p.Guest, Host: "home", Write: true})
	refused("another part", mine, fleet.PartName{Checkpoint: "j1c1", Guest: "j1g1"})
	other := newVaultClient(host("other").Calling("stock"), "stock", func() (string, error) { return at, nil })
	refused("another host", other, p)
	wrong := newVaultClient(host("home").Calling("somebody"), "somebody", func() (string, error) { return at, nil })
	if _, err := wrong.Missing(ctx, p, nil); err == nil || !strings.Contains(err.Error(), "host stock answers there, not somebody") {
		t.Errorf("another host answers: %v", err)
	}
	user := newVaultClient(joined(t, cluster, identity.Subject{Role: identity.User, Name: "home"}).Calling("stock"), "stock", func() (string, error) { return at, nil })
	refused("a user", user, p)
	foreign := newVaultClient(joined(t, authority(t), identity.Subject{Role: identity.Host, Name: "home"}).Calling("stock"), "stock", func() (string, error) { return at, nil })
	refused("another cluster", foreign, p)

	first, err := vault.Save(ctx, folder, p, mine)
	if err != nil || first.NewBytes < 3<<20 {
		t.Fatalf("put %+v, %v", first, err)
	}
	if _, err := mine.Manifest(ctx, p); err == nil {
		t.Error("who may write may read")
	}
	next := fleet.PartName{Checkpoint: "j1c2", Guest: "j1g0"}
	a.grant(fleet.VaultGrant{Checkpoint: next.Checkpoint, Guest: next.Guest, Host: "home", Write: true})
	second, err := vault.Save(ctx, folder, next, mine)
	if err != nil || second.NewBytes > 16<<10 {
		t.Errorf("the same again put %+v, %v", second, err)
	}
	a.grant(fleet.VaultGrant{Checkpoint: next.Checkpoint, Guest: next.Guest, Host: "other", Manifest: second.Manifest})
	out := t.TempDir()
	if err := vault.Load(ctx, fleet.KeptPart{PartName: next, Manifest: second.Manifest}, other, out); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(out, "memory")); err != nil || !bytes.Equal(got, memory) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := vault.Save(ctx, folder, next, other); err == nil {
		t.Error("who may read may write")
	}
	a.grant(fleet.VaultGrant{Checkpoint: next.Checkpoint, Guest: next.Guest, Host: "other", Manifest: first.Manifest})
	if _, err := other.Manifest(ctx, next); !errors.Is(err, fleet.ErrDamaged) {
		t.Errorf("another manifest: %v", err)
	}
	// Errors keep their meaning on their way.
	third := fleet.PartName{Checkpoint: "j1c3", Guest: "j1g0"}
	a.grant(fleet.VaultGrant{Checkpoint: third.Checkpoint, Guest: third.Guest, Host: "home", Write: true}, fleet.VaultGrant{Checkpoint: third.Checkpoint, Guest: third.Guest, Host: "home"})
	if _, err := mine.Manifest(ctx, third); !errors.Is(err, fleet.ErrNotKept) {
		t.Errorf("what is not there: %v", err)
	}
	more := make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(more)
	if err := os.WriteFile(filepath.Join(folder, "memory"), more, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := vault.Save(ctx, folder, third, mine); !errors.Is(err, fleet.ErrNoRoom) {
		t.Errorf("a full vault: %v", err)
	}
}

// Whatever another host sends, it gets an answer and nothing else happens.
func TestRudeHosts(t *testing.T) {
	cluster := authority(t)
	a, at := vaultHost(t, joined(t, cluster, identity.Subject{Role: identity.Host, Name: "stock"}), 0)
	p, ctx := fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, t.Context()
	c := newVaultClient(joined(t, cluster, identity.Subject{Role: identity.Host, Name: "home"}).Calling("stock"), "stock", func() (string, error) { return at, nil })
	defer c.close()
	a.grant(fleet.VaultGrant{Checkpoint: p.Checkpoint, Guest: p.Guest, Host: "home", Write: true})
	good := vault.DigestOf([]byte("x"))
	for what, do := range map[string]func() error{
		"a long chunk":   func() error { return c.PutChunk(ctx, p, good, make([]byte, 4<<20)) },
		"no chunk":       func() error { return c.PutChunk(ctx, p, good, nil) },
		"another chunk":  func() error { return c.PutChunk(ctx, p, good, []byte("noise")) },
		"no digest":      func() error { return c.PutChunk(ctx, p, "../../etc/passwd", []byte("noise")) },
		"not a manifest": func() error { return c.PutManifest(ctx, p, []byte("{")) },
		"a manifest without": func() error {
			return c.PutManifest(ctx, p, []byte(`{"version":1,"checkpoint":"j1c1","guest":"j1g0","files":[{"path":"f","mode":384,"bytes":1,"chunks":[{"digest":"`+string(good)+`","bytes":1}]}]}`))
		},
		"another part's": func() error {
			return c.PutManifest(ctx, p, []byte(`{"version":1,"checkpoint":"j1c2","guest":"j1g0","files":null}`))
		},
		"many names": func() error {
			_, err := c.Missing(ctx, p, make([]fleet.Digest, 1<<20))
			return err
		},
		"bad names": func() error {
			_, err := c.Missing(ctx, p, []fleet.Digest{"x"})
			return err
		},
		"a path":  func() error { return c.PutManifest(ctx, fleet.PartName{Checkpoint: "../..", Guest: "j1g0"}, nil) },
		"no such": func() error { _, err := c.ask(ctx, asking{"POST", p, "else", nil, 0}); return err },
	} {
		if err := do(); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if u := a.Vaults.Own.(storeVault).Usage(); u.Bytes != 0 || u.Parts != 0 {
		t.Errorf("usage %+v", u)
	}
}

// A host puts no more as a guest's part than the controller has said, and a home reads no more than it asked for.
func TestAGrantBoundsWhatIsPut(t *testing.T) {
	cluster := authority(t)
	a, at := vaultHost(t, joined(t, cluster, identity.Subject{Role: identity.Host, Name: "stock"}), 0)
	p, ctx := fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}, t.Context()
	c := newVaultClient(joined(t, cluster, identity.Subject{Role: identity.Host, Name: "home"}).Calling("stock"), "stock", func() (string, error) { return at, nil })
	defer c.close()
	a.grant(fleet.VaultGrant{Checkpoint: p.Checkpoint, Guest: p.Guest, Host: "home", Write: true, MostBytes: 2 << 20})
	memory := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "memory"), memory, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := vault.Save(ctx, folder, p, c); err == nil || !strings.Contains(err.Error(), "may take 2097152 bytes") {
		t.Errorf("3 MiB for 2: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "memory"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := vault.Save(ctx, folder, p, c); err == nil {
		t.Error("3 MiB of one chunk for 2")
	}
	if _, err := c.ask(ctx, asking{"POST", p, "missing", []byte("[\"" + string(vault.DigestOf(nil)) + "\"]"), 10}); err == nil || !strings.Contains(err.Error(), "longer than 10 bytes") {
		t.Errorf("a long answer: %v", err)
	}
}

// What was on its way when its order ended is not taken.
func TestAnOrderEndsWhileAChunkComes(t *testing.T) {
	cluster := authority(t)
	a, at := vaultHost(t, joined(t, cluster, identity.Subject{Role: identity.Host, Name: "stock"}), 0)
	p := fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}
	c := newVaultClient(joined(t, cluster, identity.Subject{Role: identity.Host, Name: "home"}).Calling("stock"), "stock", func() (string, error) { return at, nil })
	defer c.close()
	a.grant(fleet.VaultGrant{Checkpoint: p.Checkpoint, Guest: p.Guest, Host: "home", Write: true})
	body, more := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "https://vault/v1/vault/j1c1/j1g0/missing", body)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.WriteString(more, "[") // has arrived when the next has been read
		_, _ = io.WriteString(more, " ")
		time.Sleep(300 * time.Millisecond) // the host has begun to read
		a.grant()
		_, _ = io.WriteString(more, "]")
		_ = more.Close()
	}()
	got, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Body.Close()
	if got.StatusCode != http.StatusNotFound {
		t.Errorf("status %d", got.StatusCode)
	}
}

// Another host's vault is called at what its address is here, where its link to WireGuard has another number.
func TestAnotherHostsVaultInsideWireGuard(t *testing.T) {
	cluster := authority(t)
	host := func(name string) *identity.Credentials {
		return joined(t, cluster, identity.Subject{Role: identity.Host, Name: name})
	}
	stock, at := vaultHost(t, host("stock"), 1<<20)
	p := fleet.PartName{Checkpoint: "j1c1", Guest: "j1g0"}
	stock.grant(fleet.VaultGrant{Host: "home", Checkpoint: p.Checkpoint, Guest: p.Guest, Write: true, MostBytes: 1 << 20})
	told := netip.MustParseAddrPort("[fe80::3%3]:7")
	toward := func(peer netip.AddrPort) (netip.AddrPort, error) {
		if peer != told {
			t.Errorf("it is called at %s", peer)
		}
		return netip.ParseAddrPort(at)
	}
	mine := &Agent{Config: Config{Host: "home", Vaults: Vaults{Own: stock.Vaults.Own, Credentials: host("home"), Toward: toward}}}
	chunks, done, err := mine.chunksOf(&fleet.Deposit{Vault: "stock", Address: told.String()})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if _, err := chunks.Missing(t.Context(), p, nil); err != nil {
		t.Error(err)
	}
	mine.Vaults.Toward = func(netip.AddrPort) (netip.AddrPort, error) { return netip.AddrPort{}, errors.New("in clear") }
	if _, err := mine.newVaultClient("stock", at).Missing(t.Context(), p, nil); err == nil || !strings.Contains(err.Error(), "in clear") {
		t.Errorf("it is called in clear: %v", err)
	}
}
