// Package gateway leads the guests of jobs to the Internet, on the host that is a job's gateway. A process for each job ends
// guests' connections in a network stack of its own and makes others to the outside, as an ordinary program of the host would: so
// the host forwards no packet, and its firewall, its routes and its table of connections stay as they are. The process
// is in a jail, outlives this one, and ends with the job's network.
//
// The package must not know why this host is a job's gateway, or where guests are. Its tests run the process in namespaces,
// with real servers, and attack it.
package gateway

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/act/host/jail"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// The files of a job's gateway in its folder.
const (
	processFile = "process"
	ordersFile  = "orders.json"
	logFile     = "log"
)

// Folder is the folder of all gateways, in the folder Run.
const Folder = "gateways"

// Config says how jobs are led.
type Config struct {
	Run            string    // absolute folder for files that outlive the processes, but not a reboot
	Program        string    // becomes a gateway when it is started with the name of one of Shims
	UIDs           host.UIDs // each process gets one of them
	Allowed        bool      // the host's owner lets jobs use its way to the Internet
	BytesPerSecond int64     // of each job
	Resolvers      string    // file that names the host's resolvers; empty: /etc/resolv.conf
}

// Gateways are those of all jobs that this host leads.
type Gateways struct {
	config Config
	mu     sync.Mutex
	led    int
}

// Open makes the folder, and changes nothing else.
func Open(c Config) (*Gateways, error) {
	c.Resolvers = cmp.Or(c.Resolvers, "/etc/resolv.conf")
	if err := os.MkdirAll(filepath.Join(c.Run, Folder), 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of gateways: %w", err)
	}
	return &Gateways{config: c}, nil
}

// Apply leads the jobs whose gateway this host is, and no others. It is called now and then, also without a change: then a process that has
// died is started again. The networks must exist. After an error everything possible is done, and a later Apply does the rest.
func (g *Gateways) Apply(ctx context.Context, networks []fleet.Network) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	wanted := map[fleet.JobID]fleet.Network{}
	var errs []error
	for _, n := range networks {
		switch {
		case n.Gateway == nil:
		case !g.config.Allowed:
			errs = append(errs, fmt.Errorf("job %s has no way to the Internet here: the host's owner allows none (--%s)", n.Job, fleet.InternetFlag))
		case filepath.Base(string(n.Job)) != string(n.Job) || strings.HasPrefix(string(n.Job), "."):
			errs = append(errs, fmt.Errorf("a job cannot be called %q", n.Job))
		default:
			wanted[n.Job] = n
		}
	}
	found, err := os.ReadDir(filepath.Join(g.config.Run, Folder))
	errs = append(errs, err)
	for _, f := range found {
		if _, stays := wanted[fleet.JobID(f.Name())]; !stays {
			errs = append(errs, g.end(f.Name()))
		}
	}
	g.led = len(wanted)
	if len(wanted) == 0 {
		return errors.Join(errs...)
	}
	resolvers, err := g.resolvers()
	errs = append(errs, err)
	for _, job := range slices.Sorted(maps.Keys(wanted)) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		n := wanted[job]
		want := orders{Subnet: n.Subnet, Guests: n.Gateway.Guests, MTU: n.WholeMTU(), BytesPerSecond: g.config.BytesPerSecond, Resolvers: resolvers}
		if err := g.ensure(string(job), want); err != nil {
			errs = append(errs, fmt.Errorf("leading job %s to the Internet: %w", job, err))
		}
	}
	return errors.Join(errs...)
}

func (g *Gateways) folder(job string) string { return filepath.Join(g.config.Run, Folder, job) }

// resolvers are the addresses of the host's name servers.
func (g *Gateways) resolvers() (all []netip.Addr, err error) {
	f, err := os.Open(g.config.Resolvers)
	if err != nil {
		return nil, fmt.Errorf("looking for the host's name servers: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			all = append(all, a)
		}
	}
	return all, lines.Err()
}

// ensure has a process lead a job like that.
func (g *Gateways) ensure(job string, want orders) error {
	var p host.Process
	var had orders
	lives := note.Load(filepath.Join(g.folder(job), processFile), &p) == nil && !p.Gone()
	if lives && note.Load(filepath.Join(g.folder(job), ordersFile), &had) == nil {
		if reflect.DeepEqual(had, want) {
			return nil
		}
		had.Resolvers = want.Resolvers
		if reflect.DeepEqual(had, want) { // the process notices
			return g.order(job, want)
		}
	}
	if err := g.end(job); err != nil {
		return err
	}
	if err := os.Mkdir(g.folder(job), 0o755); err != nil {
		return err
	}
	if err := g.order(job, want); err != nil {
		return err
	}
	return g.start(job, want)
}

func (g *Gateways) order(job string, want orders) error {
	path := filepath.Join(g.folder(job), ordersFile)
	if err := note.Replace(path, want); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

// binaryPath is where the process has its program.
const binaryPath = "/pagurus-gateway"

// What a process may have. Its connections have two descriptors, one for each.
const (
	openFiles  = mostTCP + mostUDP + mostAsking + 64
	mostMemory = 3 << 30 // of addresses
	heapLimit  = "GOMEMLIMIT=512MiB"
	logBytes   = 1 << 20
)

// start starts a job's process.
func (g *Gateways) start(job string, want orders) (err error) {
	folder := g.folder(job)
	tap, err := openTap(want.Subnet.GatewayName())
	if err != nil {
		return err
	}
	defer tap.Close()
	uid, err := g.user()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(folder, logFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	files, err := jail.Libraries(context.Background(), g.config.Program)
	if err != nil {
		return err
	}
	// The program may be known by a descriptor of this process alone.
	tree, err := jail.HoldFile(g.config.Program, folder)
	if err != nil {
		return err
	}
	defer tree.Close()
	files[0] = jail.File{Path: binaryPath, Tree: treeFile, Runs: true} // the others are a test's libraries
	first, err := jail.Start(g.config.Program, jail.Jail{
		UID: uid, GID: uid, Root: folder, Hostname: processName, Folder: folder, Files: append(files, jail.File{Path: folder}), Network: true,
		Program: []string{processName, filepath.Join(folder, ordersFile)}, Binary: binaryPath,
		Env: []string{heapLimit}, FileBytes: logBytes, OpenFiles: openFiles, Memory: mostMemory,
	}, log, tap, tree)
	if err != nil {
		return err
	}
	if err := note.Replace(filepath.Join(folder, processFile), first.Process); err != nil {
		return errors.Join(err, first.Kill())
	}
	if err := first.Enter(); err != nil {
		return errors.Join(err, first.Kill())
	}
	return nil
}

// user is an ID that no process has. Virtual machines take the lowest ones, so this is the highest.
func (g *Gateways) user() (uint32, error) {
	used, err := host.Users()
	if err != nil {
		return 0, err
	}
	for id := uint64(g.config.UIDs.Last); id >= uint64(g.config.UIDs.First); id-- {
		if !used[uint32(id)] {
			return uint32(id), nil
		}
	}
	return 0, host.ErrNoUID
}

// openTap takes the job's side.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/net/tun (modprobe tun): %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("taking the link %s: %w", name, err), f.Close())
	}
	return f, nil
}

// end ends a job's process, and forgets it.
func (g *Gateways) end(job string) error {
	var p host.Process
	switch err := note.Load(filepath.Join(g.folder(job), processFile), &p); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("reading which process leads job %s: %w", job, err)
	default:
		if err := p.End(); err != nil {
			return fmt.Errorf("ending the gateway of job %s: %w", job, err)
		}
	}
	return os.RemoveAll(g.folder(job))
}

// Remove ends all gateways.
func (g *Gateways) Remove() error {
	if err := g.Apply(context.Background(), nil); err != nil {
		return err
	}
	return os.Remove(filepath.Join(g.config.Run, Folder))
}

// probe is an address of the Internet by which outward finds out whether this host has a way there. Nothing is sent to it.
var probe = netip.AddrFrom4([4]byte{1, 1, 1, 1})

// Outlet is what the host reports; nil: it leads no job.
func (g *Gateways) Outlet() *fleet.Outlet {
	if !g.config.Allowed {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return &fleet.Outlet{Allowed: true, Jobs: g.led, Trouble: Trouble()}
}

// Trouble says why this host has no way to the Internet, and what to do; empty: it has one.
func Trouble() string {
	if err := outward(probe); err != nil {
		return "this host has no default route: give it one (`ip route add default via …`), or start its agent without --" + fleet.InternetFlag
	}
	return ""
}
