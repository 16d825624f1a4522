package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pagurus/act/qemu/qmp"
)

// handMove is a guest that was moved by hand: the QEMU it has come to.
type handMove struct {
	target *exec.Cmd
	dir    string
	source int   // the process it has left
	sent   int64 // bytes
}

// end ends both QEMUs.
func (h *handMove) end() {
	_ = h.target.Process.Kill()
	_ = h.target.Wait()
	_ = syscall.Kill(h.source, syscall.SIGKILL)
	_ = os.RemoveAll(h.dir)
}

// byHand moves a guest as somebody without Pagurus would: the same QEMU started
// on the target with -incoming, `migrate` on the source, wait for "completed".
// What it gives is to be ended, also after an error.
func (b *experiments) byHand(ctx context.Context, guest string, index int, from, to string) (*handMove, error) {
	ctx, cancel := context.WithTimeout(ctx, byHand)
	defer cancel()
	folder := guestFolder(from, guest)
	pid, args, err := running(folder)
	if err != nil {
		return nil, err
	}
	h := &handMove{source: pid}
	if h.dir, err = os.MkdirTemp("/var/tmp", "pagurus-hand-"); err != nil {
		return nil, err
	}
	h.target = inside(to, append([]string{"qemu-system-x86_64"}, elsewhere(args, index)...)...)
	h.target.Dir = h.dir
	if err := h.target.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the target by hand: %w", err), os.RemoveAll(h.dir))
	}
	source, err := qmp.Open(ctx, filepath.Join(folder, "qmp.sock"))
	if err != nil {
		return h, err
	}
	defer source.Close()
	h.sent, err = migrate(ctx, source, from, fmt.Sprintf("198.18.0.%s:%d", strings.TrimPrefix(to, "host"), handPort+index))
	return h, err
}

// hand moves a job's only guest so, from host1 to host3. That host's agent is away meanwhile: it
// must not hold the monitor.
func (b *experiments) hand(ctx context.Context, job string) (sent int64, took time.Duration, err error) {
	defer func() {
		_, e := b.Type(context.WithoutCancel(ctx), "lab", "restart", "host1")
		err = errors.Join(err, e)
	}()
	if _, err := b.Type(ctx, "lab", "kill", "host1"); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	h, err := b.byHand(ctx, job+"g0", 0, "host1", "host3")
	took = time.Since(begun)
	if h != nil {
		sent = h.sent
		h.end()
	}
	return sent, took, err
}

// inside runs a command on a host of the lab.
func inside(host string, command ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", "pagurus-lab-" + host}, command...)...)
}

// bridges is a network as somebody without Pagurus would have it: a learning
// bridge on each host, all plugged into one switch, which learns too.
type bridges struct{ made bool }

const (
	handSwitch = "pghsw"
	handBridge = "pghbr"
	handUplink = "pghup"
)

// make makes it, unplugs the guests' TAPs from the job's network and plugs them
// in here, with one more on the third host for each guest that may come.
func (n *bridges) make(ctx context.Context, guests int) error {
	n.made = true
	if err := ip(ctx, "", "link add "+handSwitch+" up type bridge"); err != nil {
		return err
	}
	for i := 1; i <= labHosts; i++ {
		host, port := fmt.Sprintf("host%d", i), fmt.Sprintf("pghport%d", i)
		if err := ip(ctx, "", fmt.Sprintf("link add %s up master %s type veth peer name %s netns pagurus-lab-%s", port, handSwitch, handUplink, host)); err != nil {
			return err
		}
		taps, err := tapsOf(host)
		if err != nil {
			return err
		}
		for g := 0; i == labHosts && g < guests; g++ {
			tap := fmt.Sprintf("pghand%d", g)
			if err := ip(ctx, host, "tuntap add "+tap+" mode tap vnet_hdr"); err != nil {
				return err
			}
			taps = append(taps, tap)
		}
		commands := []string{"link add " + handBridge + " up type bridge", "link set " + handUplink + " up master " + handBridge}
		for _, tap := range taps {
			commands = append(commands, "link set "+tap+" nomaster", "link set "+tap+" up master "+handBridge)
		}
		for _, c := range commands {
			if err := ip(ctx, host, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear removes it. The agents plug the TAPs in again where they belong.
func (n *bridges) clear() (err error) {
	if !n.made {
		return nil
	}
	ctx := context.Background()
	for i := 1; i <= labHosts; i++ {
		err = errors.Join(err, ip(ctx, "", fmt.Sprintf("link del pghport%d", i)), ip(ctx, fmt.Sprintf("host%d", i), "link del "+handBridge))
	}
	for g := range gangSize {
		_ = ip(ctx, "host3", fmt.Sprintf("link del pghand%d", g)) // there may be fewer
	}
	return errors.Join(err, ip(ctx, "", "link del "+handSwitch))
}

// tapsOf names the guests' TAPs on a host.
func tapsOf(host string) (taps []string, err error) {
	out, err := inside(host, "ip", "-brief", "link").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the links of %s: %w", host, err)
	}
	for line := range strings.Lines(string(out)) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, "pgt") {
			taps = append(taps, name)
		}
	}
	return taps, nil
}

// ip says something to ip(8), on a host of the lab or, without one, outside.
func ip(ctx context.Context, host, words string) error {
	args := strings.Fields(words)
	c := exec.CommandContext(ctx, "ip", args...)
	if host != "" {
		c = inside(host, append([]string{"ip"}, args...)...)
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", words, err, strings.TrimSpace(string(out)))
	}
	return nil
}
