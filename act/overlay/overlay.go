// Package overlay makes the kernel's links, forwarding tables and neighbour
// tables match the networks of the jobs that have something on this host: for
// each a bridge, a VXLAN tunnel to the other hosts, a TAP link for each virtual
// machine, a pair of links for each container and one to the job's file server.
// Nothing is learnt and nothing is flooded: where every address is comes from
// the controller. No frame of a guest reaches the host itself or another job.
//
// It must not know why a network is as it is, how a guest runs, nor when it moves:
// it is told when to forward what comes for one. It works in the network namespace
// it is opened in. Its tests run against the kernel, in namespaces that stand for
// hosts.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"pagurus/fleet"
)

// DefaultPort is VXLAN's UDP port (RFC 7348).
const DefaultPort = 4789

// Config says which host's part of the networks is to be made.
type Config struct {
	Host    fleet.HostID // endpoints with this host are local
	Address netip.Addr   // IPv4 address of this host that the others send to
	Port    uint16       // UDP port of the tunnels; 0: DefaultPort
}

// Overlay is one host's part of the jobs' networks.
type Overlay struct {
	config Config
	mu     sync.Mutex
	kernel *kernel
}

// Open gets hold of the kernel's tables. It changes nothing yet.
func Open(c Config) (*Overlay, error) {
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	if c.Host == "" || !c.Address.Is4() {
		return nil, fmt.Errorf("an overlay needs a host's name and IPv4 address, not %q and %q", c.Host, c.Address)
	}
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	return &Overlay{config: c, kernel: k}, nil
}

// Apply makes the kernel's tables what the networks mean, and removes what is
// left of any other. Applying the same again changes nothing. After an error
// whatever could be done is done, and a later Apply does the rest.
func (o *Overlay) Apply(ctx context.Context, networks []fleet.Network) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	want, wrong := Want(o.config, networks)
	return errors.Join(wrong, o.applyState(ctx, want))
}

// Clear removes everything of Pagurus from this host's network.
func (o *Overlay) Clear(ctx context.Context) error { return o.Apply(ctx, nil) }

// Read gives the state as the kernel has it.
func (o *Overlay) Read() (State, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kernel.read()
}

// Close leaves the networks as they are, for whoever opens them next.
func (o *Overlay) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kernel.close()
}

// settlings is how often what is wanted is compared with what is there. Once
// does it; the second is for links that went away by themselves meanwhile,
// such as a file server's with the death of the server.
const settlings = 3

func (o *Overlay) applyState(ctx context.Context, want State) error {
	var failed []error
	for range settlings {
		have, err := o.kernel.read()
		if err != nil {
			return err
		}
		changes := Diff(have, want)
		if len(changes) == 0 {
			return nil
		}
		failed = nil
		for _, c := range changes {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("setting up jobs' networks: %w", err)
			}
			if err := o.kernel.apply(c); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", c, err))
			}
		}
	}
	have, err := o.kernel.read()
	if err != nil {
		return err
	}
	if rest := Diff(have, want); len(rest) > 0 && len(failed) == 0 {
		return fmt.Errorf("jobs' networks do not become as wanted: %d changes remain, the first: %s", len(rest), rest[0])
	}
	return errors.Join(failed...)
}
