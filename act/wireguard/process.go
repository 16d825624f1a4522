package wireguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/pause"
)

// processName is the name under which a process is wireguard-go.
const processName = "pagurus-wg"

// Shims are the processes that this package starts, by name.
var Shims = map[string]func(args []string) error{processName: serve}

// The files in the folder Run: which process wireguard-go is, while there is one, and what it said.
const (
	processFile = "wireguard.json"
	LogFile     = "wireguard.log"
)

// startLimit is how long wireguard-go may take to answer, on a busy host.
const (
	startLimit = 20 * time.Second
	startPoll  = 5 * time.Millisecond
)

// start starts wireguard-go, and returns when it answers.
func (d *Device) start(ctx context.Context, mtu int) (err error) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("this host has neither the kernel's module wireguard nor /dev/net/tun: install the one or `modprobe tun` here, or start the controller with --%s %s (%w)", fleet.EncryptionFlag, fleet.NoEncryption, err)
	}
	log := filepath.Join(d.config.Run, LogFile)
	p, ended, err := host.Outliving{
		What: "wireguard-go", Program: d.config.Program, Args: []string{processName, d.name, strconv.Itoa(mtu)},
		Log: log, Note: filepath.Join(d.config.Run, processFile),
	}.Start()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.End())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		if _, err := d.tool.Device(d.name); err == nil {
			return nil
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(log)
			return fmt.Errorf("wireguard-go ended at once: %s", bytes.TrimSpace(text))
		default:
		}
		if err := pause.For(ctx, startPoll); err != nil {
			return fmt.Errorf("waiting until wireguard-go answers: %w", err)
		}
	}
}

// process is wireguard-go; zero: there is none.
func (d *Device) process() (p host.Process, err error) {
	if err := note.Load(filepath.Join(d.config.Run, processFile), &p); err != nil && !errors.Is(err, os.ErrNotExist) {
		return p, fmt.Errorf("reading which process is wireguard-go: %w", err)
	}
	return p, nil
}

// outdated reports whether wireguard-go is of another program than the one beside the agent now: the package was upgraded.
func (d *Device) outdated() bool {
	p, err := d.process()
	if err != nil || p.Gone() || d.config.Program == "" {
		return false
	}
	runs, err := os.Stat(fmt.Sprintf("/proc/%d/exe", p.PID))
	is, err2 := os.Stat(d.config.Program)
	return err == nil && err2 == nil && !os.SameFile(runs, is)
}

// remove removes the device, its process and the process's socket.
func (d *Device) remove() error {
	p, err := d.process()
	if err != nil {
		return err
	}
	if err := p.End(); err != nil {
		return err
	}
	link, err := d.links.LinkByName(d.name)
	if err == nil {
		if err = d.links.LinkDel(link); errors.Is(err, unix.ENODEV) {
			err = nil
		}
	} else if errors.As(err, new(netlink.LinkNotFoundError)) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", d.name, err)
	}
	return errors.Join(discard(filepath.Join(d.config.Run, processFile)), discard(fleet.WireGuardSocket(d.name))) // one that was killed leaves it
}

func discard(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// prompt is the scheduling with which wireguard-go begins. Who has short time slices gets a CPU soon after there is work (from Linux 6.12 on).
var prompt = unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: before, Runtime: uint64(100 * time.Microsecond)}

// beginPrompt begins this process again, with the same number, so that all its threads are prompt: they have what
// made them. It keeps the capabilities to make the link, to have large buffers, to have a port below 1024, and to have its
// priority back after a stream.
func beginPrompt(args []string) error {
	runtime.LockOSThread()               // BecomeWith goes on with this thread
	_ = unix.SchedSetAttr(0, &prompt, 0) // who may not do that waits as others do
	return host.BecomeWith(slices.Concat([]string{processName}, args, []string{"prompt"}), unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_NICE)
}

// serve is wireguard-go: a TUN link, and a socket by which it is configured. It goes on until the
// link is removed or it is told to end.
func serve(args []string) error {
	switch {
	case len(args) == 2:
		return beginPrompt(args)
	case len(args) != 3:
		return errors.New("the process needs a link's name and MTU")
	}
	name := args[0]
	mtu, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	link, err := tun.CreateTUN(name, mtu)
	if err != nil {
		return fmt.Errorf("making the TUN link %s: %w", name, err)
	}
	read, err := readTogether(link)
	if err != nil {
		return fmt.Errorf("opening the TUN link %s: %w", name, err)
	}
	d := device.NewDevice(byNetwork{withBudget(read)}, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	defer d.Close()
	file, err := ipc.UAPIOpen(name)
	if err != nil {
		return fmt.Errorf("opening the socket of %s: %w", name, err)
	}
	listener, err := ipc.UAPIListen(name, file)
	if err != nil {
		return fmt.Errorf("listening on the socket of %s: %w", name, err)
	}
	defer listener.Close()
	over := make(chan error, 1)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				over <- err
				return
			}
			go d.IpcHandle(c)
		}
	}()
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGTERM)
	signal.Ignore(unix.SIGINT, unix.SIGHUP) // of the terminal that its agent was started from
	select {
	case <-told:
		return nil
	case <-d.Wait():
		return nil
	case err := <-over:
		return fmt.Errorf("the socket of %s is gone: %w", name, err)
	}
}
