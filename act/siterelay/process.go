package siterelay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// processName is the name under which a process relays.
const processName = "pagurus-wgrelay"

// Shims are the processes that this package starts, by name.
var Shims = map[string]func(args []string) error{processName: serve}

// orders are what the process should do. It reads them when it begins, and again when it gets SIGWINCH.
type orders struct {
	BytesPerSecond int64  `json:"bytes_per_second"`
	Pairs          []each `json:"pairs,omitempty"`
}

// each is a pair with its port.
type each struct {
	fleet.RelayPair
	Port    uint16     `json:"port"`
	Secrets [2]Secrets `json:"secrets"`
}

// Secrets authenticate the checks between this host and one for which it relays.
type Secrets struct {
	In  string `json:"in"`  // of what that host asks; hexadecimal
	Out string `json:"out"` // of what it is asked
}

// reread has the process read its orders again. Sent before the process awaits it, it does nothing, and the process reads them anyway.
const reread = unix.SIGWINCH

// serve relays as a file says until it is told to end. It needs no privilege, and gives up all.
func serve(args []string) error {
	switch {
	case len(args) == 1:
		return host.BecomeWith([]string{processName, args[0], "lean"})
	case len(args) != 2:
		return errors.New("the process needs the file that says what to relay")
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGTERM, reread)
	signal.Ignore(unix.SIGINT, unix.SIGHUP) // of a terminal
	r := &relaying{open: map[each]*pair{}, limit: rate.NewLimiter(0, longestBurst)}
	for {
		if err := r.obey(args[0]); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		if <-told == unix.SIGTERM {
			r.close()
			return nil
		}
	}
}

// relaying is all that the process does.
type relaying struct {
	limit   *rate.Limiter
	open    map[each]*pair
	running sync.WaitGroup
}

// obey makes it so. What stays goes on, and knows where both hosts are.
func (r *relaying) obey(file string) error {
	var want orders
	if err := note.Load(file, &want); err != nil {
		return fmt.Errorf("reading what to relay: %w", err)
	}
	own, all := divide(want.BytesPerSecond, len(want.Pairs))
	r.limit.SetLimit(all)
	stays := map[each]bool{}
	for _, e := range want.Pairs {
		stays[e] = true
	}
	for e, p := range r.open {
		if !stays[e] {
			_ = p.conn.Close()
			delete(r.open, e)
		}
	}
	var errs []error
	for e := range stays {
		if r.open[e] != nil {
			continue
		}
		p, err := newPair(e.Secrets)
		if err == nil {
			p.limits = newLimits(r.limit)
			p.conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(e.Port)})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("relaying between %s and %s at port %d: %w", e.Hosts[0], e.Hosts[1], e.Port, err))
			continue
		}
		r.open[e] = p
		r.running.Go(p.serve)
	}
	for _, p := range r.open {
		p.own.SetLimit(own)
	}
	return errors.Join(errs...)
}

func (r *relaying) close() {
	for _, p := range r.open {
		_ = p.conn.Close()
	}
	r.running.Wait()
}
