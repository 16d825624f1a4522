package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"pagurus/act/container/shim"
	"pagurus/act/daemon"
	"pagurus/act/guestlink"
	"pagurus/act/image"
	"pagurus/act/overlay"
	"pagurus/act/qemu"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// A job by hand has two guests in a network as somebody without Pagurus would have it: bridges
// that learn, joined by a tunnel that does, too.
const (
	handJob    = fleet.JobID("byhand")
	handSubnet = fleet.MaxSubnet // jobs get the others first
	handGuests = 2
	handBridge = "byhand-br"
	handTunnel = "byhand-vx"
	handLeave  = 30 * time.Second // for the end of all of it
	handSetup  = 5 * time.Minute  // for an emulated guest's boot
)

var errNotFirst = errors.New("the first guest is not started here")

func handTap(index int) string { return fmt.Sprintf("byhand%d", index) }

func handGuest(index int) fleet.GuestID { return fleet.GuestID(fmt.Sprintf("%sg%d", handJob, index)) }

func byHandCommand() *cobra.Command {
	return &cobra.Command{
		Use:    roles.ByHandVerb,
		Short:  "Drive QEMU by hand on this host, for a measurement",
		Hidden: true, // for `pagurus bench migration --against qemu`
		Args:   cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(syscall.SIGPIPE) // who asked may be gone, and there is something to remove
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			return driveByHand(ctx, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// driveByHand does what it reads until its input or ctx ends, and then removes all of it.
func driveByHand(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lines := make(chan []byte)
	go func() {
		defer stop() // also what is under way ends with the input
		for from := json.NewDecoder(in); ; {
			var line json.RawMessage
			if from.Decode(&line) != nil {
				return
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				return
			}
		}
	}()
	answer := func(a roles.HandAnswer, err error) error {
		if err != nil {
			a.Error = err.Error()
		}
		return json.NewEncoder(out).Encode(a)
	}
	var h *byHand
	for {
		select {
		case <-ctx.Done():
			return h.end()
		case line := <-lines:
			var a roles.HandAnswer
			if h == nil {
				h, a, err = beginByHand(ctx, line)
			} else {
				a, err = h.obey(ctx, line)
			}
			if err := answer(a, err); err != nil {
				return errors.Join(err, h.end())
			}
		}
	}
}

// byHand is one end of a move by hand.
type byHand struct {
	setting roles.HandSetting
	folder  string
	lock    *daemon.Lock
	driver  *qemu.Driver
	first   *guestlink.Client // of the first guest, where the program begins
}

// beginByHand prepares an end. After an error there is none.
func beginByHand(ctx context.Context, line []byte) (h *byHand, a roles.HandAnswer, err error) {
	if os.Geteuid() != 0 {
		return nil, a, errors.New("guests and networks by hand need root on their host")
	}
	var s roles.HandSetting
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, a, err
	}
	made := &byHand{setting: s, folder: filepath.Join(roles.Run, fmt.Sprintf("byhand-%s", s.Here))}
	if err := os.MkdirAll(roles.Run, 0o755); err != nil {
		return nil, a, err
	}
	if made.lock, err = daemon.HoldLock(made.folder+".lock", "a measurement by hand"); err != nil {
		return nil, a, err
	}
	if err = made.open(ctx); err != nil {
		return nil, a, errors.Join(err, made.end())
	}
	a.Can = made.driver.Abilities()
	if err = likePagurus(s, a.Can); err != nil {
		return nil, a, errors.Join(err, made.end())
	}
	return made, a, nil
}

// likePagurus is an error where guests by hand would not run as Pagurus's do: what is measured then says nothing.
func likePagurus(s roles.HandSetting, can fleet.Abilities) error {
	if s.Accelerator == "" || can.Accelerator == s.Accelerator {
		return nil
	}
	return fmt.Errorf("guests of this host's agent run with %s, and guests by hand would with %s: %s", s.Accelerator, can.Accelerator, cmp.Or(can.Emulated, can.Trouble, "no reason is known"))
}

// open opens the driver, removes what one that was killed has left, and makes the network.
func (h *byHand) open(ctx context.Context) error {
	images, err := image.Open(roles.Images)
	if err != nil {
		return err
	}
	guest, err := roles.Beside(roles.GuestProgram)
	if err != nil {
		return err
	}
	h.driver, err = qemu.Open(ctx, qemu.Config{
		Run: h.folder, Shim: shim.Program(), GuestAgent: guest, Address: h.setting.Here, Accelerator: h.setting.Accelerator, CPU: h.setting.CPU,
		ImageFolder: images.Ensure, Tap: func(_ fleet.Subnet, index int) string { return handTap(index) }, ByHand: true, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if err := h.stopGuests(ctx); err != nil {
		return err
	}
	if err := h.unplug(); err != nil {
		return err
	}
	return h.plug()
}

// plug makes the network by hand.
func (h *byHand) plug() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = handBridge
	tunnel := &netlink.Vxlan{
		LinkAttrs: netlink.NewLinkAttrs(), VxlanId: handSubnet.VNI(), Port: overlay.DefaultPort, Learning: true,
		SrcAddr: h.setting.Here.AsSlice(),
	}
	tunnel.Name = handTunnel
	all := []netlink.Link{bridge, tunnel}
	for i := range handGuests {
		tap := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
		tap.Name = handTap(i)
		all = append(all, tap)
	}
	for _, l := range all {
		err := netlink.LinkAdd(l)
		if err == nil && l != bridge {
			err = netlink.LinkSetMaster(l, bridge)
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("make the link %s: %w", l.Attrs().Name, err)
		}
	}
	for _, other := range h.setting.Others { // what is for all, and for who is not learnt yet, goes to each
		err := netlink.NeighAppend(&netlink.Neigh{
			LinkIndex: tunnel.Index, Family: syscall.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
			IP: other.AsSlice(), HardwareAddr: make(net.HardwareAddr, 6),
		})
		if err != nil {
			return fmt.Errorf("lead the link %s to %s: %w", handTunnel, other, err)
		}
	}
	return nil
}

// unplug removes it.
func (h *byHand) unplug() (err error) {
	for _, name := range []string{handTap(0), handTap(1), handTunnel, handBridge} {
		l, e := netlink.LinkByName(name)
		if e == nil {
			e = netlink.LinkDel(l)
		}
		if e != nil && !errors.As(e, new(netlink.LinkNotFoundError)) {
			err = errors.Join(err, fmt.Errorf("remove the link %s: %w", name, e))
		}
	}
	return err
}

func (h *byHand) stopGuests(ctx context.Context) (err error) {
	for i := range handGuests {
		err = errors.Join(err, h.driver.Stop(ctx, handGuest(i)))
	}
	return err
}

// end removes all of it.
func (h *byHand) end() (err error) {
	if h == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), handLeave)
	defer cancel()
	if h.first != nil {
		err = h.first.Close()
	}
	if h.driver != nil {
		err = errors.Join(err, h.stopGuests(ctx), h.driver.Close())
	}
	return errors.Join(err, h.unplug(), os.RemoveAll(h.folder), h.lock.Release())
}

// obey does one thing.
func (h *byHand) obey(ctx context.Context, line []byte) (a roles.HandAnswer, err error) {
	var o roles.HandOrder
	if err := json.Unmarshal(line, &o); err != nil {
		return a, err
	}
	switch o.Do {
	case roles.HandStart:
		err = h.start(ctx)
	case roles.HandRun:
		err = h.run(ctx)
	case roles.HandReceive:
		a.Listen, err = h.driver.ReceiveByHand(ctx, h.task(1))
	case roles.HandSend:
		var m qemu.HandMove
		m, err = h.driver.SendByHand(ctx, handGuest(1), o.To)
		a.Total, a.Downtime, a.Sent = m.Total, m.Downtime, m.Sent
	case roles.HandRead:
		a.Said, err = h.read(ctx, o.Offset)
	default:
		err = fmt.Errorf("%q is nothing that is done by hand", o.Do)
	}
	return a, err
}

func (h *byHand) task(index int) fleet.Task {
	s := h.setting
	return fleet.Task{
		Guest: fleet.Guest{ID: handGuest(index), Job: handJob, Index: index, Kind: fleet.VM, Gen: 1, Need: s.Need, Image: s.Image.Digest, CPU: s.CPU},
		Job:   fleet.Job{ID: handJob, Subnet: handSubnet, MPI: s.Image.MPI},
	}
}

// start boots the guests that begin here.
func (h *byHand) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handSetup)
	defer cancel()
	for _, i := range h.setting.Guests {
		if err := h.driver.Start(ctx, h.task(i)); err != nil {
			return err
		}
	}
	for _, i := range h.setting.Guests {
		client := guestlink.New(func(ctx context.Context) (io.ReadWriteCloser, error) { return h.driver.Link(ctx, handGuest(i)) })
		if i == 0 {
			h.first = client
		} else {
			defer client.Close()
		}
		if err := client.Setup(ctx, h.setup(i)); err != nil {
			return err
		}
	}
	return nil
}

// run starts the program, in all guests.
func (h *byHand) run(ctx context.Context) error {
	if h.first == nil {
		return errNotFirst
	}
	return h.first.Launch(ctx, fleet.Program{ID: string(handJob), Args: h.setting.Command, Dir: "/tmp", MPI: true, Ranks: handGuests})
}

// setup is that of a guest without files of its job.
func (h *byHand) setup(index int) fleet.Setup {
	s := fleet.Setup{
		Guest: handGuest(index), Hostname: fleet.GuestName(index), Index: index, Addr: handSubnet.GuestAddr(index),
		Prefix: fleet.SubnetPrefixBits, MAC: handSubnet.GuestMAC(index), MTU: fleet.NetworkMTU, MPI: h.setting.Image.MPI, Clock: time.Now(),
	}
	for i := range handGuests {
		s.Peers = append(s.Peers, fleet.Peer{Hostname: fleet.GuestName(i), Addr: handSubnet.GuestAddr(i), MAC: handSubnet.GuestMAC(i), Slots: 1})
	}
	return s
}

// read returns output of the program, which is to run until it is stopped.
func (h *byHand) read(ctx context.Context, offset int64) (string, error) {
	if h.first == nil {
		return "", errNotFirst
	}
	text, eof, err := h.first.Read(ctx, string(handJob), fleet.Stdout, offset)
	if err == nil && eof {
		why, _, _ := h.first.Read(ctx, string(handJob), fleet.Stderr, 0)
		err = fmt.Errorf("the program was to run on, and has ended: %s", view.Clean(string(why)))
	}
	return string(text), err
}
