package vault

import (
	"bytes"
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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// server is a real S3 server, versitygw, with TLS on loopback.
type server struct {
	at, folder, crt, keys string
	stop                  func()
	process               *os.Process
}

func serve(t *testing.T, folder string) *server {
	t.Helper()
	program, err := filepath.Abs("../../bin/versitygw")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("scripts/s3server builds an S3 server: %v", err)
	}
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{at: l.Addr().String(), folder: folder, crt: filepath.Join(dir, "crt"), keys: filepath.Join(dir, "keys")}
	if err := errors.Join(l.Close(), os.MkdirAll(filepath.Join(folder, "kept"), 0o755), certify(s.crt, filepath.Join(dir, "key")), wroteKeys(s.keys, "secret-of-the-test")); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command(program, "--access", "key-of-the-test", "--secret", "secret-of-the-test", "--port", s.at, "--cert", s.crt, "--key", filepath.Join(dir, "key"), "--quiet", "posix", folder)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.process = cmd.Process
	stopped := false
	s.stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(unix.SIGCONT)
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	}
	t.Cleanup(s.stop)
	for range 600 {
		if c, err := net.Dial("tcp", s.at); err == nil {
			_ = c.Close()
			return s
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the S3 server does not listen: %s", said.String())
	return nil
}

func wroteKeys(file, secret string) error {
	return os.WriteFile(file, fmt.Appendf(nil, "[default]\naws_access_key_id = key-of-the-test\naws_secret_access_key = %s\n", secret), 0o600)
}

// certify makes a certificate for loopback.
func certify(crt, key string) error {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "s3"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, secret.Public(), secret)
	if err != nil {
		return err
	}
	text, err := x509.MarshalECPrivateKey(secret)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(crt, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600), os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), 0o600))
}

func (s *server) bucket(host string) *Bucket {
	return &Bucket{URL: "s3://kept/of/us", Endpoint: "https://" + s.at, Region: "us-east-1", Credentials: s.keys, Authority: s.crt, Host: host}
}

func (s *server) open(t *testing.T, host string, quota int64) *Store {
	t.Helper()
	out, err := Open(Config{Bucket: s.bucket(host), Quota: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return out
}

// A bucket keeps what a folder keeps: it is there for the next agent, each chunk once, and goes when it is removed.
func TestBucketKeeps(t *testing.T) {
	testkit.Root(t)
	at := serve(t, t.TempDir())
	s := at.open(t, "host1", 0)
	folder, _ := guest(t)
	first, second := Part{Checkpoint: "j1c1", Guest: "j1g0"}, Part{Checkpoint: "j1c2", Guest: "j1g0"}
	put := saved(t, s, folder, first)
	again := saved(t, s, folder, second)
	if again.NewBytes > put.NewBytes/10 {
		t.Errorf("the same again took %d bytes after %d", again.NewBytes, put.NewBytes)
	}
	was := s.Usage()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = at.open(t, "host1", 0)
	if is := s.Usage(); is != was {
		t.Errorf("%+v became %+v", was, is)
	}
	loads(t, s, second, again.Manifest, folder)
	if err := s.Remove(first.Checkpoint); err != nil {
		t.Fatal(err)
	}
	loads(t, s, second, again.Manifest, folder)
	if got := at.open(t, "host2", 0).Usage(); got.Bytes != 0 { // another host's part is its own
		t.Errorf("%+v", got)
	}
	if err := s.Remove(second.Checkpoint); err != nil {
		t.Fatal(err)
	}
	third := Part{Checkpoint: "j1c3", Guest: "j1g0"}
	loads(t, s, third, saved(t, s, folder, third).Manifest, folder) // while the same chunks are being removed
	if err := s.Remove(third.Checkpoint); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	objects := 0
	for name := range content(t, filepath.Join(at.folder, "kept", "of", "us", "host1")) {
		if !strings.HasSuffix(name, "/") {
			objects++
		}
	}
	if objects != 1 { // who it is of
		t.Errorf("%d objects are left", objects)
	}
}

// What is wrong with a bucket is said in one sentence.
func TestBucketTroubles(t *testing.T) {
	testkit.Root(t)
	at := serve(t, t.TempDir())
	open := func(what, says string, change func(*Bucket)) {
		t.Helper()
		b := at.bucket("host1")
		change(b)
		s, err := Open(Config{Bucket: b})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret-of") {
			t.Errorf("%s: %v", what, err)
		}
		if err := b.Reach(t.Context()); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the doctor says %v", what, err)
		}
	}
	if err := at.bucket("host1").Reach(t.Context()); err != nil {
		t.Error(err)
	}
	wrong, open644 := filepath.Join(t.TempDir(), "wrong"), filepath.Join(t.TempDir(), "open")
	if err := errors.Join(wroteKeys(wrong, "another"), wroteKeys(open644, "secret-of-the-test"), os.Chmod(open644, 0o644)); err != nil {
		t.Fatal(err)
	}
	open("wrong keys", "refuses the keys in "+wrong, func(b *Bucket) { b.Credentials = wrong })
	open("open keys", "others than its owner may open", func(b *Bucket) { b.Credentials = open644 })
	open("no keys", "the keys of the bucket", func(b *Bucket) { b.Credentials += "x" })
	open("no bucket", "has no bucket other", func(b *Bucket) { b.URL = "s3://other/x" })
	open("unknown authority", "does not trust", func(b *Bucket) { b.Authority = "" })
	open("in clear", "write https", func(b *Bucket) { b.Endpoint = "http://192.0.2.1:80" })
	open("no URL", "does not name a bucket", func(b *Bucket) { b.URL = "s3:kept" })
	s := at.open(t, "host1", 1<<20)
	folder, _ := guest(t)
	part := Part{Checkpoint: "j1c1", Guest: "j1g0"}
	if _, err := Save(t.Context(), folder, part, s); !errors.Is(err, ErrNoRoom) {
		t.Errorf("over the quota: %v", err)
	}
	s = at.open(t, "host3", 0)
	put := saved(t, s, folder, part)
	if err := at.process.Signal(unix.SIGSTOP); err != nil { // it is slow
		t.Fatal(err)
	}
	begun := time.Now()
	if u := s.Usage(); u.Parts != 1 || time.Since(begun) > time.Second {
		t.Errorf("%+v after %s", u, time.Since(begun))
	}
	if err := at.process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	loads(t, s, part, put.Manifest, folder)
	at.stop()
	if err := Load(t.Context(), fleet.KeptPart{PartName: part, Manifest: put.Manifest}, s, t.TempDir()); err == nil || !strings.Contains(err.Error(), "nothing answers at https://"+at.at) {
		t.Errorf("away: %v", err)
	}
	if _, err := Save(t.Context(), folder, Part{Checkpoint: "j1c2", Guest: "j1g0"}, s); err == nil || !strings.Contains(err.Error(), "nothing answers at") {
		t.Errorf("away: %v", err)
	}
	open("away", "nothing answers at", func(*Bucket) {})
}

// The disk of the server is full: nothing counts as kept, what was there stays.
func TestBucketIsFull(t *testing.T) {
	testkit.Root(t)
	disk := t.TempDir()
	if err := unix.Mount("small", disk, "tmpfs", 0, "size=7m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	at := serve(t, filepath.Join(disk, "s3"))
	s := at.open(t, "host1", 0)
	folder, memory := guest(t)
	first, second := Part{Checkpoint: "j1c1", Guest: "j1g0"}, Part{Checkpoint: "j1c2", Guest: "j1g0"}
	put := saved(t, s, folder, first)
	other := t.TempDir()
	write(t, other, map[string]string{"memory": string(noise(5, 2*len(memory)))})
	_, err := Save(t.Context(), other, second, s)
	t.Logf("full: %v", err)
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("full: %v", err)
	}
	loads(t, s, first, put.Manifest, folder)
	if got := s.List(); len(got) != 1 {
		t.Errorf("%v", got)
	}
}
