// This file has the lab of machines: its hosts are computers that QEMU emulates, with the
// packages that other machines get.

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"pagurus/act/daemon"
	"pagurus/act/labmachine"
	"pagurus/cmd/pagurus/labnet"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

const (
	// machineImages is the folder of the images of labs' machines. It is not the lab's.
	machineImages = roles.State + "/machines"
	// bootLimit is how long an emulated machine may take to start on a busy computer.
	bootLimit = 15 * time.Minute
	// installLimit is how long it may take to install the packages and to join.
	installLimit = 15 * time.Minute
	sshPort      = "22"
)

// machines is what the hosts of a lab are, if they are machines.
type machines struct {
	number      int
	Suites      []string          `json:"suites"` // of Debian, that the hosts have in turn
	CPUs        int               `json:"cpus"`
	MemoryBytes int64             `json:"memory_bytes"`
	Passing     bool              `json:"passing,omitempty"`
	words       []string          // of a kernel's command line, for a machine that is switched on
	Packages    string            `json:"packages"`      // the folder of the packages that are installed
	Images      map[string]string `json:"images"`        // by suite, their folders
	Xen         int               `json:"xen,omitempty"` // so many of them, the last ones, are Xen hosts
	XenImage    string            `json:"xen_image,omitempty"`
	Seed        string            `json:"seed"` // of the machines' identities
}

// sockets are the links that machines are plugged into.
var sockets = labnet.Sockets{LAN: labmachine.LANTap, Card: labmachine.CardTap, Control: labmachine.ControlTap}

// The tags of the folders that machines may read.
const (
	packagesTag = "packages"
	imagesTag   = "images"
)

// machine is host n.
func (l lab) machine(n int) labmachine.Machine {
	name := string(hostName(n))
	m := labmachine.Machine{
		Name: name, Dir: filepath.Join(labState, name), Run: l.run(n), Accelerator: l.Accelerator,
		Image: l.image(n), CPUs: l.Machines.CPUs, MemoryBytes: l.Machines.MemoryBytes,
		LAN: labnet.Local(n), Gateway: labnet.IPv4.Controller(), Control: labnet.Control(n), MAC: fmt.Sprintf("54:00:12:%02x:%02x", n>>8, n&0xff),
		Shares: []labmachine.Share{{Tag: packagesTag, Path: l.Machines.Packages}}, Passing: l.Machines.Passing, Words: l.Machines.words,
	}
	if n == head {
		m.Shares = append(m.Shares, labmachine.Share{Tag: imagesTag, Path: roles.Images})
	}
	return m
}

// head is the number of the machine that is the head of the cluster.
const head = 1

// suite is the release of Debian of host n.
func (l lab) suite(n int) string { return l.Machines.Suites[(n-1)%len(l.Machines.Suites)] }

// power is the process that is host n.
func (l lab) power(n int) daemon.Daemon {
	m := l.machine(n)
	return daemon.Daemon{Name: "the machine " + m.Name, Namespace: l.namespace(n), Command: m.Command(l.Machines.Seed),
		PIDFile: filepath.Join(m.Run, "machine.pid"), LogFile: filepath.Join(labLogs, m.Name+".log")}
}

// way is the process by which this machine's socket of a controller is the head's.
func (l lab) way() daemon.Daemon {
	return daemon.Daemon{Name: "the way to the lab's controller", Namespace: l.namespace(head), Command: []string{beside(roles.ClientProgram), "lab", wayVerb},
		PIDFile: filepath.Join(labRun, "way.pid"), LogFile: filepath.Join(labLogs, "way.log")}
}

// inside runs a command in host n, and gives what it said.
func (l lab) inside(ctx context.Context, n int, command ...string) (string, error) {
	args := l.machine(n).Shell(nil, command...)
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	var out strings.Builder
	var said strings.Builder
	c.Stdout, c.Stderr = &out, &said
	err := l.namespace(n).Do(c.Start)
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		text := strings.TrimSpace(out.String() + said.String())
		return "", fmt.Errorf("%s: %s: %w: %s", hostName(n), strings.Join(command, " "), err, text[max(0, len(text)-lastWords):])
	}
	return strings.TrimSpace(out.String()), nil
}

// lastWords is how much of what a command in a machine said an error shows.
const lastWords = 1000

// answers reports whether host n's shell can be asked.
func (l lab) answers(n int) bool {
	var conn net.Conn
	err := l.namespace(n).Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(labnet.Control(n).Addr().String(), sshPort), time.Second)
		return err
	})
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	greeting := make([]byte, 4)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err = conn.Read(greeting)
	return err == nil && string(greeting) == "SSH-"
}

// awaitMachine returns when host n can be asked. One whose kernel is stuck, or whose emulator ends, is switched off and
// on, some times.
func (l lab) awaitMachine(ctx context.Context, n int) error {
	ctx, stop := context.WithTimeout(ctx, bootLimit)
	defer stop()
	power := l.power(n)
	d := power
	d.LogFile = l.machine(n).Console() // which says more
	answers := false
	for range startTries {
		err := until(ctx, fmt.Sprintf("%s has started", hostName(n)), d, func() bool {
			answers = l.answers(n)
			return answers || l.machine(n).Stuck()
		})
		if _, runs := power.Running(); err != nil && (runs || ctx.Err() != nil) {
			return err
		}
		if answers {
			return nil
		}
		if err := errors.Join(d.Stop(0), power.Start()); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s does not start: its kernel was stuck or its emulator ended %d times; its console is %s, and %w", hostName(n), startTries, d.LogFile, power.Died())
}

// startTries is how often a machine is started whose kernel is stuck.
const startTries = 4

// prepare checks what a lab of machines needs of this machine, and completes what is asked
// for: the packages, and the images.
func (l *lab) prepare(ctx context.Context, std streams) error {
	for program, from := range map[string]string{"qemu-img": "qemu-utils", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "mke2fs": "e2fsprogs", "mmdebstrap": "mmdebstrap", "dpkg-deb": "dpkg"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("machines need %s: apt-get install %s", program, from)
		}
	}
	if err := l.Machines.complete(); err != nil {
		return err
	}
	debs, err := packagesIn(l.Machines.Packages)
	if err != nil {
		return err
	}
	l.Machines.Images, l.Machines.Seed = map[string]string{}, rand.Text()
	if l.Machines.Xen < l.Hosts {
		for _, suite := range l.Machines.Suites {
			image, err := buildMachine(ctx, std, labmachine.Recipe{Suite: suite}, debs)
			if err != nil {
				return err
			}
			l.Machines.Images[suite] = image.Folder
		}
	}
	return l.prepareXen(ctx, std, debs)
}

// packagesIn gives the packages in a folder. There has to be one of each.
func packagesIn(folder string) (debs []string, err error) {
	for _, pattern := range []string{"pagurus_*_amd64.deb", "pagurus-controller_*_amd64.deb"} {
		found, _ := filepath.Glob(filepath.Join(folder, pattern))
		if len(found) != 1 {
			return nil, fmt.Errorf("%s has %s %s, and machines install one: `make packages` makes it, --"+packagesFlag+" names another folder",
				folder, view.Count(len(found), "file"), pattern)
		}
		debs = append(debs, found...)
	}
	return debs, nil
}

// buildMachine builds the image of a recipe's machines, with what the packages need.
func buildMachine(ctx context.Context, std streams, r labmachine.Recipe, debs []string) (labmachine.Image, error) {
	r.Bring = []string{beside(roles.AgentProgram), roles.DoctorVerb, roles.CRIUVerb}
	for _, deb := range debs {
		needs, err := needs(ctx, deb)
		if err != nil {
			return labmachine.Image{}, err
		}
		r.Packages = append(r.Packages, needs...)
	}
	begun := time.Now()
	if image, built := r.Find(machineImages); built {
		return image, nil
	}
	std.say(fmt.Sprintf("building a machine of Debian's %s in %s, once", r.Suite, machineImages))
	steps := roles.NewSteps(std.err)
	image, err := r.Build(ctx, machineImages, steps.Show)
	steps.Clear()
	if err == nil {
		std.say(fmt.Sprintf("the machine was built in %s", view.Took(time.Since(begun))))
	}
	return image, err
}

// needs gives the packages that a package depends on or recommends, but Pagurus's own.
func needs(ctx context.Context, deb string) (all []string, err error) {
	for _, field := range []string{"Depends", "Recommends"} {
		out, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb, field).Output()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", deb, err)
		}
		for _, word := range strings.Split(string(out), ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(word), " ")
			if name != "" && !strings.HasPrefix(name, roles.ClientProgram) {
				all = append(all, name)
			}
		}
	}
	return all, nil
}

// bringUpMachines makes what is missing, and waits until all hosts have joined and work.
func (l lab) bringUpMachines(ctx context.Context, std streams) (err error) {
	if err := l.write(); err != nil {
		return fmt.Errorf("writing the lab's record: %w", err)
	}
	if err := labnet.EnsureBridge(labnet.IPv4); err != nil {
		return err
	}
	for n := 1; n <= l.Hosts; n++ {
		if err := l.namespace(n).Ensure(); err != nil {
			return err
		}
		if err := errors.Join(labnet.EnsureSockets(n, l.namespace(n), sockets), l.machine(n).MakeDisk(ctx)); err != nil {
			return err
		}
		if err := l.power(n).Start(); err != nil {
			return err
		}
	}
	emulated := ""
	if l.Accelerator == "" {
		emulated = ", emulated, which takes minutes"
	}
	std.say(fmt.Sprintf("starting %s%s", view.Count(l.Hosts, "machine"), emulated))
	if err := l.eachHost(ctx, func(ctx context.Context, n int) error {
		if err := l.awaitMachine(ctx, n); err != nil {
			return err
		}
		std.say(fmt.Sprintf("%s has started; installing the packages", hostName(n)))
		ctx, stop := context.WithTimeout(ctx, installLimit)
		defer stop()
		return l.install(ctx, n)
	}); err != nil {
		return err
	}
	std.say("making the cluster")
	ctx, stop := context.WithTimeout(ctx, installLimit)
	defer stop()
	if err := l.found(ctx); err != nil {
		return err
	}
	return l.awaitMachines(ctx)
}

// eachHost does something for all hosts side by side. After the first error, which it gives,
// the others are told to end.
func (l lab) eachHost(ctx context.Context, do func(ctx context.Context, n int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for n := 1; n <= l.Hosts; n++ {
		all.Go(func() {
			if err := do(ctx, n); err != nil {
				stop(err) // only the first counts
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// joinedMark is a file in a machine that has become a host.
const joinedMark = "/etc/lab-joined"

// install installs the packages in host n, as docs/administration.md tells a person to.
func (l lab) install(ctx context.Context, n int) error {
	packages := "/mnt/pagurus_*.deb"
	if n == head {
		packages += " /mnt/pagurus-controller_*.deb"
	}
	script := []string{"[ ! -e " + joinedMark + " ] || exit 0"}
	for i := 1; i <= l.Hosts; i++ {
		script = append(script, fmt.Sprintf("grep -qw %[2]s /etc/hosts || echo %[1]s %[2]s >>/etc/hosts", labnet.IPv4.Addr(i), hostName(i)))
	}
	if n == head { // the images of the lab's owner, on which the machine's own are laid
		script = append(script, "mkdir -p "+roles.Images+" /srv/images /srv/over/up /srv/over/work",
			"echo '"+imagesTag+" /srv/images 9p ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose 0 0' >>/etc/fstab",
			"echo 'overlay "+roles.Images+" overlay lowerdir=/srv/images,upperdir=/srv/over/up,workdir=/srv/over/work,x-systemd.requires-mounts-for=/srv/images 0 0' >>/etc/fstab",
			"mount /srv/images", "mount "+roles.Images)
	}
	script = append(script, "mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000 "+packagesTag+" /mnt",
		"DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet "+packages, "umount /mnt",
		"systemctl disable --now nfs-ganesha")
	_, err := l.inside(ctx, n, "sh", "-ec", strings.Join(script, "\n"))
	return err
}

// found makes host 1 the head of a cluster and has the others join. Those that have joined
// stay as they are.
func (l lab) found(ctx context.Context) error {
	if _, err := l.inside(ctx, head, "sh", "-ec", "[ -e "+joinedMark+" ] || pagurus cluster init && touch "+joinedMark); err != nil {
		return err
	}
	return l.eachHost(ctx, func(ctx context.Context, n int) error {
		if n == head {
			return nil
		}
		if _, err := l.inside(ctx, n, "test", "-e", joinedMark); err == nil {
			return nil
		}
		token, err := l.inside(ctx, head, "pagurus", "token", "create", "--role", "host", "--uses", "1", "--ttl", "1h")
		if err != nil {
			return err
		}
		_, err = l.inside(ctx, n, "sh", "-ec", fmt.Sprintf("pagurus join %s:%d --token %s\ntouch %s",
			hostName(head), labListen, token, joinedMark))
		return err
	})
}

// awaitMachines returns when the head answers here and has heard every host that runs, and
// this machine, which has the files of jobs that are started here.
func (l lab) awaitMachines(ctx context.Context) error {
	if err := l.way().Start(); err != nil {
		return err
	}
	if err := until(ctx, "the head answers here", l.way(), func() bool { return connected(ctx, labSocket) != nil }); err != nil {
		return err
	}
	if err := l.startHere(ctx); err != nil {
		return err
	}
	for n, d := range l.daemons() {
		if _, err := os.Stat(d.PIDFile); n == 0 || err != nil {
			continue // it was switched off
		}
		if err := until(ctx, fmt.Sprintf("%s has called the controller", l.member(n)), d, func() bool { return connected(ctx, labSocket)[l.member(n)] }); err != nil {
			return err
		}
	}
	return nil
}

// hereName is the name in the cluster of the machine that the lab is on. Its agent serves the
// files of jobs that are started here; it is drained, so guests run on machines.
const hereName = "here"

// here is the number of the host that is this machine; 0: there is none.
func (l lab) here() int {
	if l.Machines == nil {
		return 0
	}
	return l.Hosts + 1
}

// agents are the numbers of the hosts whose agents run here.
func (l lab) agents() (all []int) {
	if l.Machines != nil {
		return []int{l.here()}
	}
	for n := 1; n <= l.Hosts; n++ {
		all = append(all, n)
	}
	return all
}

// startHere has this machine join, and its agent start.
func (l lab) startHere(ctx context.Context) error {
	n := l.here()
	for _, do := range []func() error{
		l.namespace(n).Ensure,
		func() error { return labnet.EnsureUplink(n, l.namespace(n), labnet.IPv4) },
		func() error { return l.enlist(ctx) },
		l.agent(n).Start,
	} {
		if err := do(); err != nil {
			return err
		}
	}
	client, err := wire.Dial(wire.Config{Address: labSocket})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := until(ctx, "this machine has called the controller", l.agent(n), func() bool { return connected(ctx, labSocket)[hereName] }); err != nil {
		return err
	}
	_, err = client.Ask(ctx, fleet.Request{Verb: fleet.Drain, Host: hereName})
	return err
}

// checkMachines says what is wrong with what is asked for.
func (l lab) checkMachines(asked func(flag string) bool) error {
	for _, flag := range []string{hostsFlag, cpusPerHostFlag, cpusAltogetherFlag, cpuListFlag, sitesFlag, ipv6Flag, natFlag, siteDelayFlag, siteLossFlag, siteBandwidthFlag, memPerHostFlag, acceleratorFlag, cpuFlag, fleet.EncryptionFlag} {
		if asked(flag) {
			return errors.New("--" + flag + " is for hosts that are not machines; with --" + machinesFlag + " there are --" + suiteFlag + ", --" + machineCPUsFlag + " and --" + machineMemFlag)
		}
	}
	if l.Hosts < 0 || l.here() > labnet.MaxHosts || asked(machinesFlag) && l.Hosts < 1 {
		return fmt.Errorf("--"+machinesFlag+" must be between 1 and %d", labnet.MaxHosts-1)
	}
	for _, suite := range l.Machines.Suites {
		if !slices.Contains(labmachine.Suites, suite) {
			return fmt.Errorf("--"+suiteFlag+" knows %s, not %q", strings.Join(labmachine.Suites, " and "), suite)
		}
	}
	if l.Machines.Xen < 0 || l.Machines.Xen > l.Hosts {
		return fmt.Errorf("--"+xenFlag+" must be between 0 and the number of machines, which is %d", l.Hosts)
	}
	if len(l.Machines.Suites) == 0 || l.Machines.CPUs < 1 || l.Machines.MemoryBytes < leastMachine {
		return fmt.Errorf("a machine has a suite, one CPU or more, and %s or more", view.Bytes(leastMachine))
	}
	return nil
}

// leastMachine is the memory below which no machine starts, installs and runs a guest.
const leastMachine = 1 << 30

// notMachines refuses what only hosts in namespaces can do.
func (l lab) notMachines(instead string) error {
	if l.Machines == nil {
		return nil
	}
	return cli.Exit{Code: 1, Err: errors.New("the lab's hosts are machines: " + instead)}
}

// tryThis are commands that a user of the lab may begin with.
func (l lab) tryThis() string {
	if l.Machines == nil {
		return "`pagurus host ls`, `pagurus run -n 4 -- hostname`"
	}
	return "`pagurus host ls`, which root's commands here ask the head, " + string(hostName(head)) +
		"; `pagurus lab exec host2 -- journalctl -u pagurus-agent`; `pagurus lab power host2 off`"
}
