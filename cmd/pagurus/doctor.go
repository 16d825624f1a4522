package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pagurus/act/image"
	"pagurus/act/qemu"
	"pagurus/show/cli"
	"pagurus/show/view"
)

const (
	guestUser = "pagurus" // whom QEMU runs as
	// diskNeeded is room for an image being built and the one it becomes.
	diskNeeded = 4 << 30
	// whatWidth is the width of the column that names what was looked at.
	whatWidth = 17
	// fixLimit bounds one mending command: packages may come over a slow line.
	fixLimit = 20 * time.Minute
)

// finding is one thing the doctor looked at.
type finding struct {
	What   string `json:"what"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"`         // nothing works without it
	Says   string `json:"says"`           // what is so
	Mend   string `json:"mend,omitempty"` // the command that mends it; empty: a person has to
}

func doctorCommand(std streams) *cobra.Command {
	fix := false
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, what is missing, and the command that mends it",
		Long:  "Doctor exits with 0 when everything that is needed is there, and with 1 otherwise.",
		Example: `  pagurus doctor
  sudo pagurus doctor --fix`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			found := examine(ctx)
			if fix {
				if err := mend(ctx, std, found); err != nil {
					return err
				}
				found = examine(ctx)
			}
			asJSON, _ := cmd.Flags().GetBool("json")
			return tell(std, found, asJSON)
		},
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "run the commands that mend what is missing")
	return cmd
}

// tell writes the findings and gives the doctor's exit.
func tell(std streams, found []finding, asJSON bool) error {
	missing := 0
	var text strings.Builder
	for _, f := range found {
		mark, mend := "✓", ""
		if !f.OK {
			mark = "!"
			if f.Needed {
				mark = "✗"
				missing++
			}
			if f.Mend != "" {
				mend = fmt.Sprintf("  %-*s  mend it with: %s\n", whatWidth, "", f.Mend)
			}
		}
		fmt.Fprintf(&text, "%s %-*s  %s\n%s", mark, whatWidth, f.What, view.Clean(f.Says), mend)
	}
	var err error
	if asJSON {
		err = json.NewEncoder(std.out).Encode(found)
	} else {
		_, err = io.WriteString(std.out, text.String())
	}
	if err == nil && missing > 0 {
		return cli.Exit{Code: 1, Err: fmt.Errorf("%s needed and missing: `sudo pagurus doctor --fix` mends what a command can", view.Count(missing, "thing"))}
	}
	return err
}

// mend runs the commands of what is not well, each once.
func mend(ctx context.Context, std streams, found []finding) error {
	if os.Geteuid() != 0 {
		return errors.New("mending needs root: run `sudo pagurus doctor --fix`")
	}
	done := map[string]bool{}
	for _, f := range found {
		if f.OK || f.Mend == "" || done[f.Mend] {
			continue
		}
		done[f.Mend] = true
		std.say(f.Mend)
		limited, stop := context.WithTimeout(ctx, fixLimit)
		c := exec.CommandContext(limited, "sh", "-c", f.Mend)
		c.Stdout, c.Stderr = std.err, std.err
		c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		err := c.Run()
		stop()
		if err != nil {
			std.say(fmt.Sprintf("that did not work: %v", err))
		}
	}
	return nil
}

// program is something of a Debian package that has to be there.
type program struct{ what, name, pkg string }

// programs are what Pagurus runs.
var programs = []program{
	{"QEMU", "qemu-system-x86_64", "qemu-system-x86"},
	{"networks", "ip", "iproute2"},
	{"image builder", "mmdebstrap", "mmdebstrap"},
	{"image packer", "mksquashfs", "squashfs-tools"},
	{"image unpacker", "zstd", "zstd"},
	{"image unpacker", "xz", "xz-utils"},
	{"namespaces", "unshare", "util-linux"},
	{"file server", "ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"},
}

// examine looks at everything.
func examine(ctx context.Context) []finding {
	found := []finding{lookSystem(), lookRoot()}
	for _, p := range programs {
		found = append(found, p.look())
	}
	found = append(found, lookFileServerPart(), lookUser(), lookGuestAgent(), lookLinks(), lookDisk())
	if runtime.GOARCH == "amd64" {
		found = append(found, lookAccelerator(ctx))
	}
	return append(found, lookImages())
}

func install(packages string) string {
	return "apt-get update -q && apt-get install -q -y --no-install-recommends " + packages
}

func (p program) look() finding {
	f := finding{What: p.what, Needed: true}
	path, err := lookPath(p.name)
	if err != nil {
		f.Says, f.Mend = p.name+" is missing", install(p.pkg)
		if p.name == "ganesha.nfsd" {
			// Debian starts a file server of the machine's own with it; ours
			// are one a job.
			f.Mend += "; systemctl disable --now nfs-ganesha 2>/dev/null || true"
		}
		return f
	}
	f.OK, f.Says = true, path
	return f
}

// lookPath finds a program also where an ordinary user's path does not lead.
func lookPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin"} {
		if path := filepath.Join(dir, name); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

func lookSystem() finding {
	f := finding{What: "system", Needed: true, OK: runtime.GOARCH == "amd64"}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		f.Says = fmt.Sprintf("Linux %s on %s, %s, %s of memory", unix.ByteSliceToString(u.Release[:]), runtime.GOARCH,
			view.Count(runtime.NumCPU(), "CPU"), view.Bytes(machineMemory()+memoryReserve))
	}
	if !f.OK {
		f.Says += ": guests are amd64"
	}
	return f
}

func lookRoot() finding {
	f := finding{What: "root", OK: os.Geteuid() == 0, Says: "is root"}
	if !f.OK {
		f.Says = "not root: only jobs can be run; some of this cannot be looked at"
	}
	return f
}

// lookFileServerPart looks for the server's access to local file systems,
// which is a package of its own.
func lookFileServerPart() finding {
	f := finding{What: "file server", Needed: true, Mend: install("nfs-ganesha-vfs")}
	found, _ := filepath.Glob("/usr/lib/*/ganesha/libfsalvfs.so")
	if f.OK = len(found) > 0; f.OK {
		f.Says = found[0]
	} else {
		f.Says = "its access to local file systems (FSAL VFS) is missing"
	}
	return f
}

func lookUser() finding {
	f := finding{What: "guests' user", Needed: true, Mend: "useradd --system --no-create-home --shell /usr/sbin/nologin " + guestUser}
	u, err := user.Lookup(guestUser)
	if f.OK = err == nil; f.OK {
		f.Says = fmt.Sprintf("%s, uid %s", u.Username, u.Uid)
	} else {
		f.Says = "there is no user " + guestUser + " for guests to run as"
	}
	return f
}

func lookGuestAgent() finding {
	f := finding{What: "guest agent", Needed: true}
	path, err := beside("pagurus-guest")
	if f.OK = err == nil; f.OK {
		f.Says = path
	} else {
		f.Says = err.Error()
	}
	return f
}

// lookLinks makes one of each kind of link that jobs' networks are made of, in
// a network of its own.
func lookLinks() finding {
	f := finding{What: "kernel's networks", Needed: true, Mend: "modprobe -a bridge vxlan tun veth"}
	if os.Geteuid() != 0 {
		f.OK, f.Says, f.Mend = true, "not looked at without root", ""
		return f
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and its network with it
		done <- tryLinks()
	}()
	if err := <-done; err != nil {
		f.Says = err.Error()
		return f
	}
	f.OK, f.Says = true, "bridge, vxlan, veth and tap links can be made"
	return f
}

func tryLinks() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("no network namespace can be made: %w", err)
	}
	named := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	for _, l := range []netlink.Link{
		&netlink.Bridge{LinkAttrs: named("b")},
		&netlink.Vxlan{LinkAttrs: named("x"), VxlanId: 1, Port: 4789},
		&netlink.Veth{LinkAttrs: named("v"), PeerName: "w"},
		&netlink.Tuntap{LinkAttrs: named("t"), Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_ONE_QUEUE},
	} {
		if err := netlink.LinkAdd(l); err != nil {
			return fmt.Errorf("no %s link can be made: %w", l.Type(), err)
		}
	}
	return nil
}

func lookDisk() finding {
	f := finding{What: "disk"}
	dir := defaultState
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		f.Says = err.Error()
		return f
	}
	free := int64(st.Bavail) * st.Bsize
	f.OK, f.Says = free >= diskNeeded, view.Bytes(free)+" free for "+defaultState
	if !f.OK {
		f.Says += fmt.Sprintf(": building an image takes up to %s", view.Bytes(diskNeeded))
	}
	return f
}

// lookAccelerator boots a tiny guest: a /dev/kvm that opens proves nothing.
func lookAccelerator(ctx context.Context) finding {
	f := finding{What: "guests", Needed: true}
	if os.Geteuid() != 0 {
		f.OK, f.Says = true, "not tried without root"
		return f
	}
	can, slow, err := tryGuest(ctx)
	switch {
	case err != nil:
		f.Says = err.Error()
	case slow != "":
		f.Says = "KVM does not run guests here; software emulation will be used (slower): " + slow
		f.Needed = false
	default:
		f.OK, f.Says = true, fmt.Sprintf("QEMU %s runs guests with %s", can.Version, can.Accelerator)
	}
	return f
}

// tryGuest asks the driver what it can do here, anew.
func tryGuest(ctx context.Context) (can qemu.Ability, slow string, err error) {
	agent, err := beside("pagurus-guest")
	if err != nil {
		return can, "", err
	}
	if err := os.MkdirAll(defaultRun, 0o755); err != nil {
		return can, "", err
	}
	dir, err := os.MkdirTemp(defaultRun, "probe-")
	if err != nil {
		return can, "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // QEMU is not root and reads its kernel there
		return can, "", err
	}
	d, err := qemu.Open(ctx, qemu.Config{Run: dir, GuestAgent: agent, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return can, "", err
	}
	abilities := d.Abilities()
	return qemu.Ability{Accelerator: abilities.Accelerator, Version: abilities.Version}, d.Slow(), d.Close()
}

// accelerator is what guests on this machine run with.
func accelerator(ctx context.Context) (string, error) {
	ctx, stop := context.WithTimeout(ctx, openLimit)
	defer stop()
	can, _, err := tryGuest(ctx)
	if err != nil {
		return "", fmt.Errorf("guests cannot run here: %w: `pagurus doctor` says what is missing", err)
	}
	return can.Accelerator, nil
}

func lookImages() finding {
	f := finding{What: "images", Mend: "pagurus image build openmpi"}
	if self, err := os.Executable(); err == nil {
		f.Mend = self + " image build openmpi"
	}
	if _, err := os.Stat(defaultImages); err != nil {
		f.Says = "none is built yet"
		return f
	}
	store, err := image.Open(defaultImages)
	if err != nil {
		f.OK, f.Says = errors.Is(err, os.ErrPermission), "cannot be looked at: "+err.Error()
		return f
	}
	list, err := store.List()
	if err != nil {
		f.Says, f.Mend = err.Error(), ""
		return f
	}
	var names bytes.Buffer
	for _, i := range list {
		names.WriteString(" " + i.Name)
	}
	if f.OK = len(list) > 0; f.OK {
		f.Says = strings.TrimSpace(names.String())
	} else {
		f.Says = "none is built yet"
	}
	return f
}
