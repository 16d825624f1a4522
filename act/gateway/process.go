package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// processName is the name under which a process is a gateway.
const processName = "pagurus-gateway"

// Shims are the processes that this package starts, by name.
var Shims = map[string]func(args []string) error{processName: serve}

// orders are what the process should do. It reads them when it begins, and again when the file has changed.
type orders struct {
	Subnet         fleet.Subnet `json:"subnet"`
	Guests         int          `json:"guests"`
	MTU            int          `json:"mtu"`
	BytesPerSecond int64        `json:"bytes_per_second"` // in both directions together
	Resolvers      []netip.Addr `json:"resolvers"`        // of the host
}

const (
	tapFile  = 3 // the descriptor of the job's side
	treeFile = 4 // the mount of the program, until it runs
	rereadIn = 2 * time.Second
	burst    = frameBytes
)

// serve is a gateway until the job's side is gone.
func serve(args []string) error {
	if len(args) != 1 {
		return errors.New("the process needs the file that says whom to lead")
	}
	var want orders
	if err := note.Load(args[0], &want); err != nil {
		return fmt.Errorf("reading whom to lead: %w", err)
	}
	if err := unix.SetNonblock(tapFile, true); err != nil {
		return err
	}
	var now atomic.Pointer[orders]
	now.Store(&want)
	go reread(args[0], &now)
	tap := os.NewFile(tapFile, "tap")
	if err := lead(tap, want, func() []netip.Addr { return now.Load().Resolvers }); !gone(err) {
		return fmt.Errorf("leading guests to the Internet: %w", err)
	}
	return nil
}

// gone reports whether the job's network is no more.
func gone(err error) bool {
	return errors.Is(err, unix.EBADFD) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
}

// reread takes the host's resolvers from the file when they have changed, as a laptop's do.
func reread(file string, now *atomic.Pointer[orders]) {
	var last unix.Stat_t
	for {
		var st unix.Stat_t
		if unix.Stat(file, &st) == nil && (st.Ino != last.Ino || st.Mtim != last.Mtim) {
			var is orders
			if note.Load(file, &is) == nil {
				now.Store(&is)
				last = st
			}
		}
		time.Sleep(rereadIn)
	}
}

// lead connects a job's guests to the outside until their side is gone.
func lead(tap *os.File, want orders, resolvers func() []netip.Addr) error {
	bytes := rate.Limit(want.BytesPerSecond)
	o := &outside{
		own: want.Subnet.GatewayAddr(), tcp: newRoom(mostTCP, eachTCP), udp: newRoom(mostUDP, eachUDP),
		fresh: rate.NewLimiter(newPerSecond, newAtOnce), bytes: rate.NewLimiter(bytes, burst),
		resolvers: resolvers, asking: make(chan struct{}, mostAsking), allowed: allowed,
	}
	link := channel.New(queueFrames, uint32(want.MTU), "")
	s, err := o.newStack(link)
	if err != nil {
		return err
	}
	defer s.Destroy()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	job := newSide(want.Subnet, want.Guests)
	go job.send(ctx, link, tap)
	return job.receive(tap, link)
}
