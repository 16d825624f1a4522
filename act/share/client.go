package share

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// Clients has this host's file clients. A client mounts a job's directories for containers, by
// the host's kernel. It has a network namespace of its own in the job's network, with an
// address that does not move. So a move of a guest disturbs no connection, lock or cache of
// another guest here.
//
// The mounts outlive this process, and the next one finds them in the run folder.
type Clients struct {
	folder string // only root may enter: the server takes every user for the job's

	mu     sync.Mutex
	wanted map[fleet.JobID]fleet.Network // by the latest KeepClients
	locks  map[fleet.JobID]chan struct{} // each has room for one: who may use and change the client
}

// OpenClients finds the mounts of an earlier process in its run folder.
func OpenClients(run string) (*Clients, error) {
	folder, err := filepath.Abs(filepath.Join(run, ClientsFolder))
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err == nil { // the kernel lists mounts by paths without symbolic links
		folder, err = filepath.EvalSymlinks(folder)
	}
	if err != nil {
		return nil, fmt.Errorf("making the folder for mounts of jobs' files: %w", err)
	}
	return &Clients{folder: folder, wanted: map[fleet.JobID]fleet.Network{}, locks: map[fleet.JobID]chan struct{}{}}, nil
}

// ClientsFolder is the folder of the file clients in the run folder.
const ClientsFolder = "file-clients"

// The names in a client's folder.
const (
	networkName = "net"          // its network namespace
	mountPrefix = "dir."         // a mounted directory
	subnetName  = "network.json" // the note of the job's network that it is in
)

// clientOptions are those of guests that mount for themselves. hard: a program never sees an
// error because the server restarts.
const clientOptions = "vers=4.1,proto=tcp,port=2049,sec=sys,hard,timeo=100,retrans=2,actimeo=1,lookupcache=positive"

const (
	// serveLimit is how long a job's server may start after its guests' hosts need it.
	serveLimit = 60 * time.Second
	dialLimit  = 2 * time.Second
	dialPause  = 200 * time.Millisecond
	// writeLimit is how long unmounting may write files before it is forced. Guests have
	// written theirs by then.
	writeLimit = 3 * time.Second
)

// KeepClients removes all file clients except those of these networks. One that its job had before it began again is not
// of its network now. Call it before the networks are removed: without its network a client cannot end its session with the server.
// After an error everything possible is done, and a later call does the rest.
func (c *Clients) KeepClients(ctx context.Context, networks []fleet.Network) error {
	wanted := map[fleet.JobID]fleet.Network{}
	for _, n := range networks {
		if n.Mount != nil && jobName.MatchString(string(n.Job)) {
			wanted[n.Job] = n
		}
	}
	c.mu.Lock()
	c.wanted = wanted
	c.mu.Unlock()
	found, err := os.ReadDir(c.folder)
	if err != nil {
		return fmt.Errorf("looking for mounts of jobs' files: %w", err)
	}
	var wrong []error
	for _, f := range found {
		if n, ok := wanted[fleet.JobID(f.Name())]; ok && !c.isOfAnother(n) {
			continue
		}
		if err := c.remove(ctx, fleet.JobID(f.Name())); err != nil {
			wrong = append(wrong, fmt.Errorf("unmounting the files of job %s: %w", f.Name(), err))
		}
	}
	return errors.Join(wrong...)
}

// isOfAnother reports whether a job's client is in another network than this one. One of an earlier version has no note, and
// counts as in this one.
func (c *Clients) isOfAnother(n fleet.Network) bool {
	var was fleet.Subnet
	return note.Load(filepath.Join(c.folder, string(n.Job), subnetName), &was) == nil && was != n.Subnet
}

// Open mounts a directory of a job, unless it is mounted already, and opens it. It waits for
// the job's server. A directory that Open returned stays mounted while others have mounts of
// it.
func (c *Clients) Open(ctx context.Context, job fleet.JobID, dir string) (*os.File, error) {
	if err := c.enter(ctx, job); err != nil {
		return nil, err
	}
	defer c.leave(job)
	c.mu.Lock()
	n, ok := c.wanted[job]
	c.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("this host has no way into the network of job %s yet, to mount %s", job, dir)
	}
	if _, err := quoted(dir); err != nil {
		return nil, err
	}
	at := c.mountPath(job, dir)
	have, err := host.MountsBelow(at)
	if err == nil && len(have) == 0 {
		err = c.mount(ctx, n, dir, at)
	}
	if err != nil {
		return nil, fmt.Errorf("mounting %s from its server: %w", dir, err)
	}
	fd, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s, mounted from its server: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), dir), nil
}

func (c *Clients) enter(ctx context.Context, job fleet.JobID) error {
	c.mu.Lock()
	if c.locks[job] == nil {
		c.locks[job] = make(chan struct{}, 1)
	}
	lock := c.locks[job]
	c.mu.Unlock()
	select {
	case lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for other mounts of job %s: %w", job, ctx.Err())
	}
}

func (c *Clients) leave(job fleet.JobID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	<-c.locks[job]
}

func (c *Clients) mountPath(job fleet.JobID, dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(c.folder, string(job), fmt.Sprintf("%s%x", mountPrefix, sum[:8]))
}

// mount mounts a directory from the job's server.
func (c *Clients) mount(ctx context.Context, n fleet.Network, dir, at string) error {
	ctx, cancel := context.WithTimeout(ctx, serveLimit)
	defer cancel()
	p, err := c.plot(n)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.join(clientEnd(n)); err != nil {
		return err
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	// The server tells clients apart by their hosts' names: two with one name would
	// each take the other's locks.
	name := fmt.Sprintf("pagurus-%s-%s", n.Job, n.Mount.Addr)
	source := n.Subnet.ShareAddr().String() + ":" + dir
	options := fmt.Sprintf("%s,addr=%s,clientaddr=%s", clientOptions, n.Subnet.ShareAddr(), n.Mount.Addr)
	return p.do(func() error {
		if err := answers(ctx, n.Subnet.ShareAddr()); err != nil { // the kernel would wait far longer
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("making a name for the client: %w", err)
		}
		if err := unix.Sethostname([]byte(name[:min(len(name), 64)])); err != nil {
			return fmt.Errorf("naming the client: %w", err)
		}
		err := unix.Mount(source, at, "nfs4", unix.MS_NOSUID|unix.MS_NODEV, options)
		if errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("this host's kernel has no NFS client: %w", err)
		}
		return err
	})
}

// answers waits until a job's server answers.
func answers(ctx context.Context, server netip.Addr) error {
	d := net.Dialer{Timeout: dialLimit}
	for {
		conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(server, nfsPort).String())
		if err == nil {
			return conn.Close()
		}
		if pause.For(ctx, dialPause) != nil {
			return fmt.Errorf("its server does not answer: %w", err)
		}
	}
}

// plot finds a client's network namespace, or makes it. It has a name here, unlike a
// server's: no process is in it.
func (c *Clients) plot(n fleet.Network) (*plot, error) {
	folder := filepath.Join(c.folder, string(n.Job))
	at := filepath.Join(folder, networkName)
	if have, err := host.MountsBelow(at); err != nil {
		return nil, err
	} else if len(have) > 0 {
		return openPlot(at)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	if err := note.Replace(filepath.Join(folder, subnetName), n.Subnet); err != nil {
		return nil, fmt.Errorf("noting a client's network: %w", err)
	}
	p, err := newPlot()
	if err != nil {
		return nil, err
	}
	if err = os.WriteFile(at, nil, 0o600); err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", p.file.Fd()), at, "", unix.MS_BIND, "")
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("naming a network namespace: %w", err)
	}
	return p, nil
}

// remove unmounts everything of a job and removes its client.
func (c *Clients) remove(ctx context.Context, job fleet.JobID) error {
	if err := c.enter(ctx, job); err != nil {
		return err
	}
	defer c.leave(job)
	folder := filepath.Join(c.folder, string(job))
	have, err := host.MountsBelow(folder)
	if err != nil {
		return err
	}
	for _, at := range slices.Backward(have) {
		if err := unmountFiles(at); err != nil {
			return err
		}
	}
	if have, err = host.MountsBelow(folder); err != nil || len(have) > 0 { // else this would delete the user's files
		return errors.Join(fmt.Errorf("%d mounts are left below %s", len(have), folder), err)
	}
	return os.RemoveAll(folder)
}

// unmountFiles unmounts what is at a path. If its server does not take what is left to write
// in time, that is lost.
func unmountFiles(at string) error {
	done := make(chan error, 1)
	go func() { done <- unix.Unmount(at, unix.UMOUNT_NOFOLLOW) }() // the kernel may block it for ever
	var err error
	select {
	case err = <-done:
	case <-time.After(writeLimit):
		err = unix.EBUSY
	}
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err = unix.Unmount(at, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fmt.Errorf("unmounting %s: %w", at, err)
}
