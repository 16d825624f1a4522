// Command client is the only program of a tiny guest. It mounts a share with the kernel's NFS
// client, as a job's guest does, works on it, and reports on the console.
package main

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

func main() {
	if err := run(); err != nil {
		fmt.Printf("CLIENT failed: %v\n", err)
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for folder, kind := range map[string]string{"/proc": "proc", "/dev": "devtmpfs"} {
		os.MkdirAll(folder, 0o755)
		if err := unix.Mount(kind, folder, kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mounting %s: %w", folder, err)
		}
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	options := map[string]string{}
	for _, word := range strings.Fields(string(line)) {
		k, v, _ := strings.Cut(word, "=")
		options[k] = v
	}
	if err := modules(); err != nil {
		return err
	}
	if err := network(options["addr"]); err != nil {
		return err
	}
	export, err := base64.URLEncoding.DecodeString(options["export"])
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := mount(options["share"], string(export), options["addr"]); err != nil {
		return err
	}
	fmt.Printf("CLIENT mounted in %d ms\n", time.Since(begin).Milliseconds())
	if options["only"] == "append" {
		return hold("/share", false)
	}
	if err := smallFiles("/share"); err != nil {
		return err
	}
	return hold("/share", true)
}

func modules() error {
	f, err := os.Open("/modules.order.pagurus")
	if err != nil {
		return err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), fleet.DriverWord) {
			continue
		}
		m, err := os.Open(lines.Text())
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(m.Fd()), "", 0)
		m.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("loading %s: %w", lines.Text(), err)
		}
	}
	return nil
}

func network(cidr string) error {
	addr, err := netlink.ParseAddr(cidr + "/24")
	if err != nil {
		return err
	}
	var link netlink.Link
	for range 200 {
		if link, err = netlink.LinkByName("eth0"); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetMTU(link, 1450), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
}

func mount(share, export, addr string) error {
	os.MkdirAll("/share", 0o755)
	for range 200 { // until the server answers
		if c, err := net.DialTimeout("tcp", share+":2049", time.Second); err == nil {
			c.Close()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	options := fmt.Sprintf("vers=4.1,proto=tcp,port=2049,sec=sys,hard,actimeo=1,lookupcache=positive,addr=%s,clientaddr=%s", share, addr)
	return unix.Mount(share+":"+export, "/share", "nfs4", 0, options)
}

func smallFiles(folder string) error {
	const count = 60
	text := []byte(strings.Repeat("0123456789abcdef", 256))
	begin := time.Now()
	for i := range count {
		if err := os.WriteFile(fmt.Sprintf("%s/small.%d", folder, i), text, 0o644); err != nil {
			return err
		}
	}
	written := time.Since(begin)
	begin = time.Now()
	found, err := filepath.Glob(folder + "/small.*")
	if err != nil || len(found) != count {
		return fmt.Errorf("%d small files of %d: %w", len(found), count, err)
	}
	for _, path := range found {
		if got, err := os.ReadFile(path); err != nil || string(got) != string(text) {
			return fmt.Errorf("%s has %d bytes: %w", path, len(got), err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	fmt.Printf("CLIENT small files: %d written in %d ms, read and removed in %d ms\n", count, written.Milliseconds(), time.Since(begin).Milliseconds())
	big := make([]byte, 1<<20)
	begin = time.Now()
	f, err := os.Create(folder + "/big")
	if err != nil {
		return err
	}
	for range 64 {
		if _, err := f.Write(big); err != nil {
			return err
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	fmt.Printf("CLIENT big file: 64 MiB written in %d ms\n", time.Since(begin).Milliseconds())
	return nil
}

// hold keeps files open, locked if that is wanted, and removed while the server is killed and restarted, and
// checks that they are unchanged.
func hold(folder string, locked bool) error {
	held, err := os.OpenFile(folder+"/held", os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0}
	if locked {
		if err := unix.FcntlFlock(held.Fd(), unix.F_SETLK, &lock); err != nil {
			return fmt.Errorf("locking: %w", err)
		}
	}
	removed, err := os.Create(folder + "/removed")
	if err != nil {
		return err
	}
	if _, err := removed.WriteString("still here"); err != nil {
		return err
	}
	if err := os.Remove(folder + "/removed"); err != nil {
		return err
	}
	inside, err := os.Open(folder)
	if err != nil {
		return err
	}
	fmt.Println("CLIENT holding")
	var longest time.Duration
	lines := 0
	for last := time.Now(); ; lines++ {
		if _, err := fmt.Fprintln(held, lines); err != nil {
			return fmt.Errorf("writing after %d lines: %w", lines, err)
		}
		if err := held.Sync(); err != nil {
			return fmt.Errorf("syncing after %d lines: %w", lines, err)
		}
		longest, last = max(longest, time.Since(last)), time.Now()
		var stat unix.Stat_t
		if err := unix.Fstatat(int(inside.Fd()), "stop", &stat, 0); err == nil {
			break
		} else if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("looking into the directory: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	was := make([]byte, 10)
	if _, err := removed.ReadAt(was, 0); err != nil || string(was) != "still here" {
		return fmt.Errorf("the removed file has %q: %w", was, err)
	}
	lock.Type = unix.F_UNLCK
	if err := unix.FcntlFlock(held.Fd(), unix.F_SETLK, &lock); err != nil {
		return fmt.Errorf("unlocking: %w", err)
	}
	if err := errors.Join(held.Close(), removed.Close(), inside.Close()); err != nil {
		return err
	}
	// The removed file is deleted asynchronously after close, and not while the server
	// waits for clients to reclaim their files.
	begin := time.Now()
	for {
		traces, err := filepath.Glob(folder + "/.nfs*")
		if err != nil {
			return err
		}
		if len(traces) == 0 {
			break
		}
		if time.Since(begin) > time.Minute {
			return fmt.Errorf("%v are not removed", traces)
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Printf("CLIENT removed the last trace in %d ms\n", time.Since(begin).Milliseconds())
	if err := unix.Unmount("/share", 0); err != nil {
		return fmt.Errorf("unmounting: %w", err)
	}
	fmt.Printf("CLIENT done: %d lines, longest gap %d ms\n", lines+1, longest.Milliseconds())
	return nil
}
