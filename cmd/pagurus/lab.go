package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/act/daemon"
	"pagurus/act/endnotice"
	"pagurus/act/host"
	"pagurus/act/machine"
	"pagurus/act/owner"
	"pagurus/cmd/pagurus/labnet"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// A lab's folders and names. The images are the machine's; everything else is removed with
// the lab.
const (
	labRun     = roles.Run + "/lab"
	labState   = roles.State + "/lab"
	labRecord  = labRun + "/lab.json"
	labLock    = roles.Run + "/lab.lock"
	labLogs    = labState + "/log"
	labListen  = 7461
	labPurpose = "a lab"
)

// lab is a cluster on this machine. Its hosts are network namespaces, each with the real
// agent; the real controller is in the machine's own network.
type lab struct {
	Hosts          int                           `json:"hosts"`
	Controllers    int                           `json:"controllers,omitempty"`     // 0: one
	CPUsPerHost    float64                       `json:"cpus_per_host"`             // that all guests of a host together may use; 0: no limit
	CPUList        map[fleet.HostID]fleet.CPUSet `json:"cpu_list,omitempty"`        // of hosts that do not have all CPUs
	CPUsAltogether float64                       `json:"cpus_altogether,omitempty"` // of a host, for guests and `lab exec` together; 0: no limit
	MemoryPerHost  int64                         `json:"memory_per_host_bytes"`
	Sites          *labSites                     `json:"sites,omitempty"`       // nil: one network
	IPv6           bool                          `json:"ipv6,omitempty"`        // hosts have no address of IPv4
	Accelerator    string                        `json:"accelerator,omitempty"` // of the guests, or of the machines; empty: each agent finds out
	Told           string                        `json:"told,omitempty"`        // what guests are to run with; empty: Accelerator
	CPU            string                        `json:"cpu,omitempty"`         // that guests get with KVM; empty: their host's
	Encryption     fleet.Encryption              `json:"encryption,omitempty"`  // between the hosts
	Lease          time.Duration                 `json:"lease_ns,omitempty"`    // of each host; 0: none
	Machines       *machines                     `json:"machines,omitempty"`    // what the hosts are; nil: network namespaces
}

func labCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run a cluster on this machine, to try and to test",
		Long: `A lab is a whole cluster on one machine. Its hosts are network namespaces on one
bridge (198.18.0.0/24, or with --ipv6 2001:db8:7067::/64). Each runs the real agent and
real guests, and the real controller runs beside them.

With --machines its hosts are machines instead, emulated by QEMU where there is no KVM:
each has a Debian with its own kernel and systemd, on which the packages are installed.
Machines can be switched off, cut off, suspended and more; any host can be switched off.`,
		Example: `  sudo pagurus lab up
  pagurus lab status
  sudo pagurus lab down
  sudo pagurus lab up --machines 3`,
		Args: cli.OnlyVerbs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(labUpCommand(std), labDownCommand(std), labStatusCommand(std), labExecCommand(std), linkCommand(std.out, labPorts),
		labPartCommand(std, "kill", "Kill the agent of a host, or the controller", lab.kill),
		labPartCommand(std, "restart", "Kill the agent of a host, or the controller, and start it again", lab.restart))
	cmd.AddCommand(machineCommands(std)...)
	return cmd
}

func labUpCommand(std streams) *cobra.Command {
	l, lists, m := lab{MemoryPerHost: 4 << 30, Encryption: fleet.AutoEncryption, Lease: roles.LabLease}, []string{}, newMachines()
	sites, nats := &labSites{}, []string{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a lab, or its missing parts",
		Example: `  pagurus lab up
  pagurus lab up --hosts 4 --cpus-per-host 0.5 --mem-per-host 2G
  pagurus lab up --hosts 2 --cpu-list host2=0    # hosts that differ
  pagurus lab up --encryption none               # to see what WireGuard costs
  pagurus lab up --sites 3 --nat cone,cone,none  # networks of their own behind routers
  pagurus lab up --ipv6                          # without IPv4
  pagurus lab up --machines 3                    # with kernels of their own
  pagurus lab up --machines 2 --suite trixie,bookworm`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asked := cmd.Flags().Changed
			none, err := sites.complete(asked, nats, l.IPv6)
			if err != nil {
				return err
			}
			if !none {
				l.Sites = sites
			}
			if asked(machinesFlag) {
				l.Machines, l.Hosts = m, m.number
				err = errors.Join(l.checkMachines(asked), m.complete())
			} else {
				err = l.checkNamespaces(asked, lists)
			}
			err = errors.Join(err, l.checkControllers())
			if err != nil {
				return err
			}
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			return l.up(ctx, std, asked)
		},
	}
	cmd.Flags().IntVar(&l.Hosts, hostsFlag, 3, "hosts")
	cmd.Flags().IntVar(&l.Controllers, controllersFlag, 1, "controllers; three survive the loss of one")
	cmd.Flags().Float64Var(&l.CPUsPerHost, cpusPerHostFlag, 0, "CPUs that all guests of a host together may use (default: no limit)")
	cmd.Flags().Float64Var(&l.CPUsAltogether, cpusAltogetherFlag, 0, "CPUs that a host has for guests and for what its owner runs there with lab exec (default: no limit)")
	cmd.Flags().StringArrayVar(&lists, cpuListFlag, nil, "HOST=CPUS: the only CPUs of this machine that a host's agent and guests may use, like host2=0-3; once for each such host (default: all)")
	cmd.Flags().StringVar(&l.Told, acceleratorFlag, "", "what guests run with, as for pagurus agent: kvm or emulation (default: what a trial finds)")
	cli.Judge(cmd.Flags(), acceleratorFlag, judged(fleet.RefusedAccelerator))
	cmd.Flags().StringVar(&l.CPU, cpuFlag, "", "the CPU of guests that KVM runs, as for pagurus agent (default: host)")
	cli.Judge(cmd.Flags(), cpuFlag, judged(fleet.RefusedCPU))
	cli.MayBeEmpty(cmd.Flags(), acceleratorFlag, cpuFlag)
	cli.Size(cmd.Flags(), &l.MemoryPerHost, memPerHostFlag, "memory that each host has for guests")
	cmd.Flags().BoolVar(&l.IPv6, ipv6Flag, false, "give the hosts addresses of IPv6 alone")
	sites.addFlags(cmd.Flags(), &nats)
	roles.AddEncryption(cmd.Flags(), &l.Encryption)
	roles.AddLease(cmd.Flags(), &l.Lease)
	m.addFlags(cmd.Flags())
	return cmd
}

// checkNamespaces says what is wrong with a lab that is asked for, and completes it.
func (l *lab) checkNamespaces(asked func(flag string) bool, lists []string) (err error) {
	for _, flag := range machineFlags {
		if asked(flag) {
			return errors.New("--" + flag + " is for machines: give --" + machinesFlag + ", too")
		}
	}
	if l.Hosts < 1 || l.Hosts > labnet.MaxHosts {
		return fmt.Errorf("--"+hostsFlag+" %d: a lab has 1 to %d hosts; give a number of these", l.Hosts, labnet.MaxHosts)
	}
	if l.CPUsPerHost < 0 || l.CPUsAltogether < 0 {
		return errors.New("--" + cpusPerHostFlag + " and --" + cpusAltogetherFlag + " must not be negative")
	}
	if l.CPUList, err = cpuLists(lists, l.Hosts); err != nil {
		return fmt.Errorf("--"+cpuListFlag+" %w", err)
	}
	return nil
}

// hostsOf are the names of a number of hosts.
func hostsOf(hosts int) map[fleet.HostID]bool {
	all := map[fleet.HostID]bool{}
	for n := range hosts {
		all[hostName(n+1)] = true
	}
	return all
}

// cpuLists reads the CPUs of hosts that do not have all.
func cpuLists(words []string, hosts int) (map[fleet.HostID]fleet.CPUSet, error) {
	if len(words) == 0 {
		return nil, nil
	}
	here, err := machine.Facts()
	if err != nil {
		return nil, err
	}
	all := map[fleet.HostID]fleet.CPUSet{}
	for _, w := range words {
		name, list, ok := strings.Cut(w, "=")
		cpus, err := fleet.ParseCPUs(list)
		host := fleet.HostID(name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", w, err)
		case !ok || len(cpus) == 0:
			return nil, fmt.Errorf("%q is not of the form HOST=CPUS, like host2=0-3", w)
		case len(all[host]) > 0:
			return nil, fmt.Errorf("names %s twice", name)
		case !hostsOf(hosts)[host]:
			return nil, fmt.Errorf("%s is not a host of this lab, which has %s", name, view.Count(hosts, "host"))
		case len(cpus.Minus(here.CPUs)) > 0:
			return nil, fmt.Errorf("%s: of this machine you may use CPUs %s", w, here.CPUs)
		}
		all[host] = cpus
	}
	return all, nil
}

func labDownCommand(std streams) *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "End the lab with all its guests and remove every trace of it",
		Example: "  sudo pagurus lab down",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			return down(ctx, std)
		},
	}
}

func labStatusCommand(std streams) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say whether a lab is up, and where its parts are",
		Long:  "Status exits with 0 if a lab is up and whole, and with 1 otherwise.",
		Example: `  pagurus lab status
  pagurus lab status --json | jq '.parts[] | {name, log}'`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, _ := cmd.Flags().GetBool("json")
			return status(cmd.Context(), std, asJSON)
		},
	}
}

func labExecCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "exec HOST -- COMMAND [ARGUMENT…]",
		Short:             "Run a command in a host's network, or in a machine",
		Example:           "  pagurus lab exec host1 -- ip neigh\n  sudo pagurus lab exec host2 -- journalctl -u pagurus-agent    # a machine",
		Args:              cli.AtLeast(2, "a host, and a command after --"),
		ValidArgsFunction: completeLab(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := readLab()
			if err != nil {
				return err
			}
			n, err := l.number(args[0])
			if err != nil {
				return err
			}
			command := afterDash(args[1:])
			if len(command) == 0 {
				return errors.New("no command is named: write it after --")
			}
			if l.Machines != nil {
				command = l.machine(n).Shell(terminal(std.in), command...)
			} else if err := l.occupy(n); err != nil {
				return err
			}
			c := exec.CommandContext(cmd.Context(), command[0], command[1:]...)
			c.Stdin, c.Stdout, c.Stderr = std.in, std.out, std.err
			if err := l.namespace(n).Do(c.Start); err != nil {
				return err
			}
			var exit *exec.ExitError
			if err := c.Wait(); errors.As(err, &exit) && exit.Exited() {
				return cli.Exit{Code: exit.ExitCode()}
			} else {
				return err
			}
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// labPartCommand is a hidden command about one daemon of the lab, for tests and debugging.
func labPartCommand(std streams, name, short string, do func(lab, context.Context, daemon.Daemon) error) *cobra.Command {
	return &cobra.Command{
		Use:               name + " HOST|controller",
		Short:             short,
		Example:           "  sudo pagurus lab " + name + " host1",
		Hidden:            true,
		Args:              cli.Exactly(1, "a host, or controller"),
		ValidArgsFunction: completeLab(1, "controller"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := readLab()
			if err != nil {
				return err
			}
			if err := l.notMachines("try `pagurus lab exec HOST -- systemctl kill --signal=KILL pagurus-agent`"); err != nil {
				return err
			}
			unlock, err := lockLab()
			if err != nil {
				return err
			}
			defer unlock()
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			for n := 1; n <= max(1, l.Controllers); n++ {
				if args[0] == controllerName(n) {
					return do(l, ctx, l.controllerN(n))
				}
			}
			n, err := l.number(args[0])
			if err != nil {
				return err
			}
			return do(l, ctx, l.agent(n))
		},
	}
}

// kill kills a daemon, as a fault.
func (l lab) kill(_ context.Context, d daemon.Daemon) error { return d.Stop(0) }

// restart kills the daemon, starts it again, and returns when the whole lab works together.
func (l lab) restart(ctx context.Context, d daemon.Daemon) error {
	if err := d.Stop(0); err != nil {
		return err
	}
	if err := d.Start(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, labUpLimit)
	defer stop()
	return l.awaitWhole(ctx)
}

// readLab gives the lab that is up, or was not taken down properly.
func readLab() (lab, error) {
	text, err := os.ReadFile(labRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return lab{}, errors.New("no lab is up: `pagurus lab up` starts one")
	}
	var l lab
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return lab{}, fmt.Errorf("reading the lab's record: %w: `pagurus lab down` removes the lab", err)
	}
	return l, nil
}

func (l lab) write() error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(labRun, 0o755); err != nil {
		return err
	}
	return os.WriteFile(labRecord, append(text, '\n'), 0o644)
}

// lockLab excludes other `lab` commands while one changes the lab.
func lockLab() (unlock func(), err error) {
	lock, err := daemon.HoldLock(labLock, "another `pagurus lab` command")
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Release() }, nil
}

func hostName(n int) fleet.HostID { return fleet.HostID("host" + strconv.Itoa(n)) }

// labNamespace begins the name of a host's network namespace; the host's name follows.
const labNamespace = "pagurus-lab-"

func (l lab) namespace(n int) daemon.Namespace {
	return daemon.Namespace(labNamespace + string(hostName(n)))
}

// labPorts are the links of the named hosts, or of all.
func labPorts(names []string) (all []string, err error) {
	l, err := readLab()
	for n := 1; n <= l.Hosts && err == nil && len(names) == 0; n++ {
		all = append(all, labnet.Port(n))
	}
	for _, name := range names {
		n := 0
		if err == nil {
			n, err = l.number(name)
		}
		all = append(all, labnet.Port(n))
	}
	return all, err
}

// number gives a host's number by its name.
func (l lab) number(name string) (int, error) {
	for n := 1; n <= l.Hosts; n++ {
		if string(hostName(n)) == name {
			return n, nil
		}
	}
	return 0, fmt.Errorf("the lab has no host %q: it has host1 to host%d", name, l.Hosts)
}

// completeLab completes at most so many hosts of the lab that is up, or other words.
func completeLab(most int, words ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		l, err := readLab()
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		all := slices.Clone(words)
		for n := range l.Hosts {
			all = append(all, string(hostName(n+1)))
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// judged is what a flag's value is judged by, given what says what is wrong with it.
func judged(refused func(string) string) func(string) error {
	return func(s string) error {
		if reason := refused(s); reason != "" {
			return errors.New(reason)
		}
		return nil
	}
}

// beside is the path of a program beside this one. If it is missing, the plain name is
// returned, and starting it reports the error.
func beside(program string) string {
	path, err := roles.Beside(program)
	if err != nil {
		return program
	}
	return path
}

// controller is the lab's first controller.
func (l lab) controller() daemon.Daemon { return l.controllerN(1) }

// member is the name of host n in the cluster.
func (l lab) member(n int) fleet.HostID {
	if n == l.here() {
		return hereName
	}
	return hostName(n)
}

// moreFlags has more flags for agents that "lab up" and "lab restart" start, for tests.
const moreFlags = "PAGURUS_LAB_AGENT"

// agent is the agent of host n, which is no machine.
func (l lab) agent(n int) daemon.Daemon {
	name := string(hostName(n))
	run := l.run(n)
	args := []string{beside(roles.AgentProgram), roles.NoConfig, "--host", string(l.member(n)), "--controller", l.endpoint(),
		"--state", filepath.Join(labState, name), "--run", run, "--images", roles.Images, "--address", l.addr(n).String(),
		"--group", l.group(n), "--owner-cpu", string(owner.Network), "--memory", strconv.FormatInt(l.MemoryPerHost, 10), "--accelerator", cmp.Or(l.Told, l.Accelerator),
		"--first-core", strconv.Itoa(l.firstCore(n)), "--" + fleet.UIDsFlag, guestUIDs(n).String(),
		"--" + fleet.LeaseFlag, roles.LeaseWord(l.Lease)}
	if l.Sites != nil {
		s, _ := l.site(n)
		args = append(args, "--site", siteName(s.Number))
	}
	args = append(args, "--health", string(fleet.HealthWarn))
	more := strings.Fields(os.Getenv(moreFlags))
	if notices := "--" + roles.EndNoticesFlag; !slices.Contains(more, notices) { // its machine is that of the other hosts
		args = append(args, notices, endnotice.Off)
	}
	args = append(args, more...)
	if l.CPU != "" {
		args = append(args, "--cpu", l.CPU)
	}
	if l.CPUsPerHost > 0 {
		args = append(args, "--cpus", strconv.FormatFloat(l.CPUsPerHost, 'g', -1, 64))
	}
	if cpus := l.CPUList[hostName(n)]; len(cpus) > 0 {
		args = append([]string{"taskset", "--cpu-list", cpus.String()}, args...)
	}
	return daemon.Daemon{
		Name: "the agent of " + name, Namespace: l.namespace(n), Command: args,
		PIDFile: filepath.Join(run, "agent.pid"), LogFile: filepath.Join(labLogs, name+".log"),
	}
}

// firstCore is the first core to which host n pins guests. Each host takes the whole machine
// for its own, and would otherwise pin its first guest to the same core as all others.
func (l lab) firstCore(n int) int { return (n - 1) * max(1, runtime.NumCPU()/l.Hosts) }

// labUIDs is how many guests a host of a lab can have at once.
const labUIDs = 1000

// guestUIDs are the user IDs of host n's guests. The hosts share the machine's users, and two
// guests must not have the same.
func guestUIDs(n int) host.UIDs {
	first := host.UsualUIDs.Last + 1 + uint32(n-1)*labUIDs
	return host.UIDs{First: first, Last: first + labUIDs - 1}
}

// run is host n's folder for files that outlive its agent.
func (l lab) run(n int) string { return filepath.Join(labRun, string(hostName(n))) }
