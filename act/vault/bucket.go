package vault

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"pagurus/internal/fault"
	"pagurus/internal/pause"
)

// Bucket says where a store is that speaks S3. A host has a part of it for itself, below its name.
type Bucket struct {
	URL         string // s3://BUCKET/PREFIX
	Endpoint    string // https://HOST:PORT; empty: Amazon's
	Region      string // empty: it is asked for
	Credentials string // file with the keys, as the AWS command line has it, for its owner alone
	Authority   string // file with the certificate of who has signed the endpoint's; empty: one that the machine trusts
	Host        string
}

// Scheme begins the URL of a bucket.
const Scheme = "s3://"

const (
	usualEndpoint = "https://s3.amazonaws.com"
	bucketLimit   = time.Minute     // for one object, also a manifest of a large guest
	bucketOpen    = 2 * time.Minute // to list all
	bucketConnect = 10 * time.Second
	bucketTries   = 4
	bucketPause   = 100 * time.Millisecond // doubled after each try
	bucketRoom    = 1 << 50                // what a bucket without a quota is said to have
)

// Refused says what is wrong with where a bucket is; empty: nothing that can be known without asking it.
func (b Bucket) Refused() string {
	u, err := url.Parse(b.URL)
	switch {
	case err != nil || u.Scheme != "s3" || u.Host == "" || u.User != nil || u.RawQuery != "":
		return fmt.Sprintf("%q does not name a bucket: write s3://BUCKET/PREFIX", b.URL)
	case strings.Contains(u.Path, "..") || strings.Contains(u.Path, "//"):
		return fmt.Sprintf("%q is not a plain prefix", u.Path)
	case b.Credentials == "":
		return "a bucket needs a file with its keys"
	case b.Endpoint == "":
		return ""
	}
	at, err := url.Parse(b.Endpoint)
	switch {
	case err != nil || at.Host == "" || at.Path != "" && at.Path != "/" || at.Scheme != "https" && at.Scheme != "http":
		return fmt.Sprintf("%q is not an endpoint: write https://HOST or https://HOST:PORT", b.Endpoint)
	case at.Scheme == "http" && !net.ParseIP(at.Hostname()).IsLoopback():
		return fmt.Sprintf("%s would send guests' memory in clear: write https", b.Endpoint)
	}
	return ""
}

// bucket is a place in a bucket.
type bucket struct {
	b      Bucket
	name   string // of the bucket
	prefix string // with a slash at its end
	client *minio.Client
	end    *http.Transport
}

func (b Bucket) place() (place, error) {
	if reason := b.Refused(); reason != "" {
		return nil, errors.New(reason)
	}
	if err := ownersAlone(b.Credentials); err != nil {
		return nil, err
	}
	u, _ := url.Parse(b.URL) // it has been tested
	at, _ := url.Parse(b.endpoint())
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if b.Authority != "" {
		text, err := os.ReadFile(b.Authority)
		if err != nil {
			return nil, fmt.Errorf("read the certificate for %s: %w", at.Host, err)
		}
		if trust.RootCAs = x509.NewCertPool(); !trust.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate (PEM)", b.Authority)
		}
	}
	end := &http.Transport{
		TLSClientConfig: trust, TLSHandshakeTimeout: bucketConnect, ResponseHeaderTimeout: bucketLimit / bucketTries, IdleConnTimeout: bucketLimit, MaxIdleConnsPerHost: syncWorkers,
		DialContext: (&net.Dialer{Timeout: bucketConnect}).DialContext, Proxy: http.ProxyFromEnvironment,
	}
	client, err := minio.New(at.Host, &minio.Options{
		Creds: credentials.NewFileAWSCredentials(b.Credentials, ""), Secure: at.Scheme == "https", Region: b.Region, Transport: end, MaxRetries: bucketTries,
	})
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", b.endpoint(), err)
	}
	return &bucket{b: b, name: u.Host, prefix: strings.TrimPrefix(path.Join(u.Path, b.Host)+"/", "/"), client: client, end: end}, nil
}

// Reach asks the server for the names in this host's part, and says in a sentence why it does not get them.
func (b Bucket) Reach(ctx context.Context) error {
	at, err := b.place()
	if err != nil {
		return err
	}
	k := at.(*bucket)
	defer k.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing
	for o := range k.client.ListObjects(ctx, k.name, minio.ListObjectsOptions{Prefix: k.prefix, MaxKeys: 1}) {
		err = o.Err
		break
	}
	return k.said(errors.Join(err, ctx.Err()))
}

func (b Bucket) endpoint() string {
	if b.Endpoint == "" {
		return usualEndpoint
	}
	return b.Endpoint
}

// ownersAlone refuses keys that others may read.
func ownersAlone(file string) error {
	about, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("the keys of the bucket: %w", err)
	}
	if about.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("others than its owner may open %s, which has the keys of the bucket: run `chmod 600 %s`, and make new keys if others could have read it", file, file)
	}
	return nil
}

func (k *bucket) String() string { return Scheme + k.name + "/" + strings.TrimSuffix(k.prefix, "/") }

func (k *bucket) slow() bool { return true }

// ownerFile says which machine uses the place.
const ownerFile = "owner"

// open makes sure that the bucket is there, the keys fit, and that no other machine uses the place.
func (k *bucket) open() error {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return fmt.Errorf("find out which machine this is: %w", err)
	}
	mine := strings.TrimSpace(string(id)) + " " + k.b.Host
	switch is, err := k.read(ownerFile); {
	case errors.Is(err, fs.ErrNotExist):
		if err := k.write(ownerFile, []byte(mine), "owner"); err != nil {
			return fmt.Errorf("open the vault %s: %w", k, k.said(err))
		}
	case err != nil:
		return fmt.Errorf("open the vault %s: %w", k, k.said(err))
	case string(is) != mine:
		return fmt.Errorf("another machine uses the vault %s: choose another prefix, or remove the object %s%s if that machine is gone", k, k.prefix, ownerFile)
	}
	return nil
}

func (k *bucket) close() error {
	k.end.CloseIdleConnections()
	return nil
}

func (k *bucket) list(folder string) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bucketOpen)
	defer cancel()
	out := map[string]int64{}
	for o := range k.client.ListObjects(ctx, k.name, minio.ListObjectsOptions{Prefix: k.prefix + folder + "/", Recursive: true}) {
		if o.Err != nil {
			return nil, o.Err
		}
		out[strings.TrimPrefix(o.Key, k.prefix)] = o.Size
	}
	return out, ctx.Err()
}

func (k *bucket) read(name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bucketLimit)
	defer cancel()
	o, err := k.client.GetObject(ctx, k.name, k.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer o.Close()
	text, err := io.ReadAll(io.LimitReader(o, MostManifest+1))
	if is := minio.ToErrorResponse(err); err != nil && is.Code == minio.NoSuchKey {
		err = fmt.Errorf("%w: %s", fs.ErrNotExist, name)
	}
	return text, err
}

// write puts an object, which is there as a whole when it has been answered.
func (k *bucket) write(name string, text []byte, what string) error {
	if err := fault.Point("vault." + what + ".half"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), bucketLimit)
	defer cancel()
	var err error
	for try := range bucketTries {
		if _, err = k.client.PutObject(ctx, k.name, k.prefix+name, bytes.NewReader(text), int64(len(text)), minio.PutObjectOptions{ContentType: "application/octet-stream"}); !k.passes(err) {
			return err
		}
		_ = pause.For(ctx, bucketPause<<try)
	}
	return err
}

// passes reports whether an error may be over soon: servers over a file system confuse an object with its folder while that is removed.
func (k *bucket) passes(err error) bool {
	is := minio.ErrorResponse{}
	return errors.As(err, &is) && !errors.Is(k.said(err), ErrNoRoom) && is.Code != minio.NoSuchBucket && is.StatusCode != http.StatusForbidden
}

func (k *bucket) syncFiles([]string) error { return nil }

func (k *bucket) remove(name string) error {
	all, err := k.list(name)
	if err != nil {
		return err
	}
	all[name] = 0 // or it is an object
	for name := range all {
		ctx, cancel := context.WithTimeout(context.Background(), bucketLimit)
		err := k.client.RemoveObject(ctx, k.name, k.prefix+name, minio.RemoveObjectOptions{})
		cancel()
		if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchKey {
			return err
		}
	}
	return nil
}

// length is not asked for: that takes a while for each of thousands, and a bucket keeps what it has acknowledged.
func (k *bucket) length(_ string, said int64) (int64, error) { return said, nil }

// spare: a bucket does not say.
func (k *bucket) spare() (int64, error) { return bucketRoom, nil }

// said says in a sentence what is wrong with a bucket.
func (k *bucket) said(err error) error {
	at := k.b.endpoint()
	is := minio.ErrorResponse{}
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrDamaged):
		return err
	case errors.As(err, &is):
		switch {
		case is.Code == "QuotaExceeded" || is.Code == "XMinioStorageFull" || is.StatusCode == http.StatusInsufficientStorage:
			return fmt.Errorf("%w: %s at %s is full: remove checkpoints, or make room there", ErrNoRoom, k, at)
		case is.Code == minio.NoSuchBucket:
			return fmt.Errorf("%s has no bucket %s: make it there, or write another name", at, k.name)
		case is.StatusCode == http.StatusForbidden || is.Code == "InvalidAccessKeyId" || is.Code == "SignatureDoesNotMatch":
			return fmt.Errorf("%s refuses the keys in %s for bucket %s (%s)", at, k.b.Credentials, k.name, is.Code)
		}
		return fmt.Errorf("%s answers about bucket %s: %s (%s)", at, k.name, is.Message, is.Code)
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fmt.Errorf("%s shows a certificate that this machine does not trust: name its authority's", at)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not answer in time", at)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing answers at %s: check the address, and that the server runs", at)
	}
	if late := (net.Error)(nil); errors.As(err, &late) && late.Timeout() {
		return fmt.Errorf("%s does not answer in time", at)
	}
	return fmt.Errorf("reaching %s: %w", at, err)
}
