// Package wireguard keeps this host's WireGuard device, through which packets to other hosts go
// encrypted and authenticated. The device is the kernel's where it has WireGuard, else a TUN
// link with a process of wireguard-go. wgctrl configures and reads both alike.
//
// The device outlives this process, and the next Open finds it again. It must not know what
// goes through it, or which host is which: its caller gives it peers. It works in the network
// namespace in which it is opened. Its tests use the kernel, wireguard-go, and namespaces as hosts.
package wireguard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"

	"pagurus/act/host"
	"pagurus/fleet"
)

// Config says where the device's files are.
type Config struct {
	Run     string // absolute folder for files that outlive the process, but not a reboot
	State   string // folder for what stays: the key
	Port    uint16 // UDP; 0: fleet.WireGuardPort
	Program string // becomes wireguard-go when it is started with the name of one of Shims
	GoOnly  bool   // never the kernel's, as if it had none
}

// Device is this host's.
type Device struct {
	config Config
	name   string
	mu     sync.Mutex
	key    Key
	links  *netlink.Handle
	tool   *wgctrl.Client
	greets greetings
}

// Open reads the host's key, and makes one if there is none or it is too old. It changes no
// device: one that is here goes on with its key until Apply.
func Open(c Config) (*Device, error) {
	if c.Port == 0 {
		c.Port = fleet.WireGuardPort
	}
	if !filepath.IsAbs(c.Run) {
		return nil, fmt.Errorf("the folder of the WireGuard device is %q, which is not absolute", c.Run)
	}
	key, err := ensureKey(filepath.Join(c.State, keyFile))
	if err != nil {
		return nil, err
	}
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	tool, err := wgctrl.New()
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("opening the configuration of WireGuard: %w", err)
	}
	d := &Device{config: c, name: fleet.WireGuardLink(c.Run), key: key, links: links, tool: tool}
	if err := d.greets.open(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Name is the name of the device's link.
func (d *Device) Name() string { return d.name }

// End is what other hosts must know of the device.
func (d *Device) End() fleet.WireGuardEnd {
	return fleet.WireGuardEnd{Key: d.key.Public().String(), Port: d.config.Port}
}

// Close leaves the device in place for the next Open.
func (d *Device) Close() error {
	d.greets.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.links.Close()
	return d.tool.Close()
}

// Apply makes the device as wanted. A repeated call changes nothing, and peers that stay notice nothing
// of others that come and go. After an error everything possible is done, and
// a later Apply does the rest.
func (d *Device) Apply(ctx context.Context, w fleet.WireGuard) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want, err := d.want(w)
	if err != nil {
		return err
	}
	have, err := d.read()
	if err != nil {
		return err
	}
	if len(want.Peers) == 0 && d.outdated() {
		have = State{} // nobody notices that it is made again
	}
	changes := Diff(have, want)
	var failed []error
	for _, c := range changes {
		if err := d.apply(ctx, c, want, w.KernelOnly); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c, err))
			if c.Verb == makeDevice {
				break // the rest needs it
			}
		}
	}
	if len(failed) == 0 {
		d.greetPeers(changes, want)
	}
	return errors.Join(failed...)
}

// Protection says what the device is; empty: there is none.
func (d *Device) Protection() fleet.Protection {
	d.mu.Lock()
	defer d.mu.Unlock()
	link, err := d.links.LinkByName(d.name)
	if err != nil {
		return ""
	}
	return protection(link)
}

func protection(link netlink.Link) fleet.Protection {
	if link.Type() == kernelType {
		return fleet.KernelWireGuard
	}
	return fleet.UserWireGuard
}

// CPU is what the device's process has used; 0 for the kernel's device, which has none.
func (d *Device) CPU() time.Duration {
	p, err := d.process()
	if err != nil || p.Gone() {
		return 0
	}
	st, err := host.ReadStat(p.PID)
	if err != nil {
		return 0
	}
	return st.CPU
}

// Read returns the device's present state.
func (d *Device) Read() (State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.read()
}

// Remove removes the device with its process. The key stays.
func (d *Device) Remove() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.remove()
}

// Local is the device's address with its zone, the name of the link.
func (d *Device) Local(w fleet.WireGuard) netip.Addr { return w.Address.WithZone(d.name) }

// Numbered is Local with the link's number as the zone, for sockets: Go's net remembers for a minute which number a name had,
// and another device may have the name by now. Without a device it is Local, which is of no use to sockets.
func (d *Device) Numbered(w fleet.WireGuard) netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	link, err := d.links.LinkByName(d.name)
	if err != nil {
		return d.Local(w)
	}
	return w.Address.WithZone(strconv.Itoa(link.Attrs().Index))
}

// Forget removes the key. The next Open makes another.
func Forget(state string) error {
	err := os.Remove(filepath.Join(state, keyFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
