// This file has the commands that do to a lab's machines what happens to computers.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"pagurus/act/badlink"
	"pagurus/act/daemon"
	"pagurus/cmd/pagurus/labnet"
	"pagurus/cmd/roles"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// newMachines are the machines that a lab has unless asked otherwise.
func newMachines() *machines { return &machines{MemoryBytes: 2560 << 20} }

// machineFlags are the flags that only a lab of machines has.
var machineFlags = []string{suiteFlag, machineCPUsFlag, machineMemFlag, machinePassingFlag, packagesFlag, xenFlag}

func (m *machines) addFlags(flags *pflag.FlagSet) {
	flags.IntVar(&m.number, machinesFlag, 3, "machines, which are hosts with kernels of their own, instead of --"+hostsFlag)
	flags.StringSliceVar(&m.Suites, suiteFlag, []string{"trixie"}, "release of Debian of the machines: trixie, bookworm, or both in turn")
	flags.IntVar(&m.CPUs, machineCPUsFlag, 2, "CPUs of each machine")
	cli.Size(flags, &m.MemoryBytes, machineMemFlag, "memory of each machine")
	flags.BoolVar(&m.Passing, machinePassingFlag, false, "give each machine an emulated IOMMU and, as eth2 on the lab's network, a card with virtual functions (igb), to try run --device")
	flags.IntVar(&m.Xen, xenFlag, 0, "so many of the machines, the last ones, are Xen hosts")
	flags.StringVar(&m.Packages, packagesFlag, "", "folder of the packages that the machines install (default: dist beside the folder of this program)")
}

// complete says where the packages are.
func (m *machines) complete() (err error) {
	if m.Packages == "" {
		m.Packages = filepath.Join(filepath.Dir(filepath.Dir(beside(roles.ClientProgram))), "dist")
	}
	m.Packages, err = filepath.Abs(m.Packages)
	return err
}

// otherwise reports whether what was asked for is not what there is.
func (m *machines) otherwise(had *machines, asked func(flag string) bool) bool {
	return had == nil ||
		asked(suiteFlag) && !reflect.DeepEqual(had.Suites, m.Suites) ||
		asked(machineCPUsFlag) && had.CPUs != m.CPUs ||
		asked(xenFlag) && had.Xen != m.Xen ||
		asked(machineMemFlag) && had.MemoryBytes != m.MemoryBytes ||
		asked(machinePassingFlag) && had.Passing != m.Passing ||
		asked(packagesFlag) && had.Packages != m.Packages
}

// machineDaemons are all processes of a lab of machines. The way to the controller is first,
// as the controller is in other labs.
func (l lab) machineDaemons() []daemon.Daemon {
	all := []daemon.Daemon{l.way()}
	for n := 1; n <= l.Hosts; n++ {
		all = append(all, l.power(n))
	}
	return append(all, l.agent(l.here()))
}

// machineState says in a word how a machine is.
func (l lab) machineState(ctx context.Context, n int, running bool) string {
	switch {
	case !running:
		return "off"
	case l.machine(n).Stopped(ctx):
		return "suspended"
	case !labnet.PortUp(n):
		return "cut off"
	}
	return "running"
}

// hostState says in a word how a host is.
func (l lab) hostState(ctx context.Context, n int) string {
	if l.Machines != nil {
		_, ok := l.power(n).Running()
		return l.machineState(ctx, n, ok)
	}
	if _, ok := l.agent(n).Running(); !ok {
		return "off"
	}
	return "running"
}

// dropHost does to a namespace what a power cut does to a machine: nothing leaves it any more, not
// even the end of a connection, and then nothing runs there.
func (l lab) dropHost(ctx context.Context, n int) error {
	if err := labnet.SetPort(n, false); err != nil {
		return err
	}
	if err := l.agent(n).Stop(0); err != nil {
		return err
	}
	return l.sweep(ctx, n)
}

// raiseHost ends dropHost, and returns when the whole lab works together.
func (l lab) raiseHost(ctx context.Context, n int) error {
	if err := labnet.SetPort(n, true); err != nil {
		return err
	}
	if err := l.agent(n).Start(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, labUpLimit)
	defer stop()
	return l.awaitWhole(ctx)
}

// leastPower is the memory with which an installed machine may be tried.
const leastPower = 64 << 20

// machineVerb is a command about one machine.
type machineVerb struct {
	use, short, example string
	long                string
	args                int // beside the host; the last may be missing if optional
	optional            bool
	anywhere            bool // also where hosts are namespaces
	do                  func(ctx context.Context, l lab, n int, args []string) (says string, err error)
	flags               func(*pflag.FlagSet)
}

// machineCommands are the commands about a lab's machines.
func machineCommands(std streams) []*cobra.Command {
	control := false
	onControl := func(flags *pflag.FlagSet) {
		flags.BoolVar(&control, controlFlag, false, "only its connection to the controller; of the controller's machine: everybody's")
	}
	all := []machineVerb{
		powerVerb(),
		{use: "cut HOST", short: "Cut a machine off the network", flags: onControl,
			long:    "Nothing passes between the machine and others, and no side is told. `pagurus lab exec` still\nreaches it. `pagurus lab mend` ends it.",
			example: "  sudo pagurus lab cut host2\n  sudo pagurus lab cut host2 --control",
			do: func(_ context.Context, l lab, n int, _ []string) (string, error) {
				if control {
					return fmt.Sprintf("%s is cut off the controller", hostName(n)), l.block(n, labListen)
				}
				return fmt.Sprintf("%s is cut off", hostName(n)), labnet.SetPort(n, false)
			}},
		{use: "mend HOST", short: "End what cut did to a machine", flags: onControl,
			example: "  sudo pagurus lab mend host2",
			do: func(_ context.Context, l lab, n int, _ []string) (string, error) {
				err := l.block(n, 0)
				if !control {
					err = errors.Join(err, labnet.SetPort(n, true))
				}
				return fmt.Sprintf("%s is connected", hostName(n)), err
			}},
		{use: "suspend HOST", short: "Stop a whole machine",
			long:    "The machine and its clock stop, as when it hangs or its lid is closed.",
			example: "  sudo pagurus lab suspend host2",
			do: func(ctx context.Context, l lab, n int, _ []string) (string, error) {
				return fmt.Sprintf("%s is suspended", hostName(n)), l.machine(n).Stop(ctx)
			}},
		{use: "resume HOST", short: "Let a suspended machine go on",
			example: "  sudo pagurus lab resume host2",
			do: func(ctx context.Context, l lab, n int, _ []string) (string, error) {
				return fmt.Sprintf("%s goes on", hostName(n)), l.machine(n).Continue(ctx)
			}},
		{use: "clock HOST +|-DURATION", short: "Set a machine's clock forward or back", args: 1,
			example: "  sudo pagurus lab clock host2 +3h\n  sudo pagurus lab clock host2 -- -10m",
			do:      setClock},
		{use: "fill HOST [SIZE]", short: "Fill a machine's disk", args: 1, optional: true,
			long:    "Fill makes one file that leaves SIZE free for root on the machine's disk, by default nothing.\n`pagurus lab fill HOST all` removes the file.",
			example: "  sudo pagurus lab fill host2\n  sudo pagurus lab fill host2 100M    # leaves that much\n  sudo pagurus lab fill host2 all     # as before",
			do:      fillDisk},
	}
	commands := []*cobra.Command{imageCommand(std), wayCommand()}
	for _, v := range all {
		commands = append(commands, v.command(std))
	}
	return commands
}

// powerVerb cuts the power, and switches it on.
func powerVerb() machineVerb {
	memory, passing, words := int64(0), false, ""
	onMemory := func(flags *pflag.FlagSet) {
		flags.BoolVar(&passing, machinePassingFlag, false, "with on: with an emulated IOMMU and, as eth2 on the lab's network, a card with virtual functions (igb), until the machine is off again")
		cli.Size(flags, &memory, machineMemFlag, "with on: the machine's memory until it is off again (default: what the lab's machines have)")
		flags.StringVar(&words, machineWordsFlag, "", "with on: more words of the kernel's command line, until the machine is off again")
	}
	return machineVerb{use: "power HOST off|on", short: "Cut a host's power, or switch it on", args: 1, anywhere: true, flags: onMemory,
		long: `A machine without power loses what it has not written to its disk. ` + "`lab power\nHOST on`" + ` starts it again, and returns when the machine can be asked.

Where hosts are namespaces, the host's network is cut and all its processes are ended. It keeps
what they have written.`,
		example: "  sudo pagurus lab power host2 off\n  sudo pagurus lab power host2 on\n  sudo pagurus lab power host3 on --machine-mem 128M",
		do: func(ctx context.Context, l lab, n int, args []string) (string, error) {
			switch {
			case memory != 0 && (args[0] != "on" || l.Machines == nil || memory < leastPower):
				return "", fmt.Errorf("--%s is for machines that are switched on, %s or more", machineMemFlag, view.Bytes(leastPower))
			case passing && (args[0] != "on" || l.Machines == nil):
				return "", fmt.Errorf("--%s is for machines that are switched on", machinePassingFlag)
			case words != "" && (args[0] != "on" || l.Machines == nil):
				return "", fmt.Errorf("--%s is for machines that are switched on", machineWordsFlag)
			case memory != 0 || passing || words != "":
				with := *l.Machines
				with.MemoryBytes, with.Passing, l.Machines = cmp.Or(memory, with.MemoryBytes), passing || with.Passing, &with
				with.words = strings.Fields(words)
				return l.powerOn(ctx, n)
			case args[0] == "off" && l.Machines == nil:
				return fmt.Sprintf("%s is off", hostName(n)), l.dropHost(ctx, n)
			case args[0] == "off":
				return fmt.Sprintf("%s is off", hostName(n)), l.power(n).Stop(0)
			case args[0] == "on" && l.Machines == nil:
				return fmt.Sprintf("%s has started", hostName(n)), l.raiseHost(ctx, n)
			case args[0] == "on":
				return l.powerOn(ctx, n)
			}
			return "", fmt.Errorf("power is on or off, not %q", args[0])
		}}
}

func (v machineVerb) command(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: v.use, Short: v.short, Long: v.long, Example: v.example,
		ValidArgsFunction: completeLab(1),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1+v.args && !(v.optional && len(args) == v.args) {
				return fmt.Errorf("usage: pagurus lab %s", v.use)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := readLab()
			if err != nil {
				return err
			}
			if l.Machines == nil && !v.anywhere {
				return errors.New("the lab's hosts are not machines: `pagurus lab down`, then `pagurus lab up --" + machinesFlag + " 3`")
			}
			if os.Geteuid() != 0 {
				return fmt.Errorf("the lab is root's: try `sudo pagurus lab %s`", v.use)
			}
			n, err := l.number(args[0])
			if err != nil {
				return err
			}
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			says, err := v.do(ctx, l, n, args[1:])
			if err != nil {
				return err
			}
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(std.out).Encode(map[string]any{"host": hostName(n), "state": l.hostState(ctx, n), "says": says})
			}
			_, err = fmt.Fprintln(std.out, says)
			return err
		},
	}
	if v.flags != nil {
		v.flags(cmd.Flags())
	}
	return cmd
}

// imageCommand builds the machines' image, without a lab.
func imageCommand(std streams) *cobra.Command {
	m := newMachines()
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Build what machines start from, if it is missing, without starting a lab",
		Long:    "Image builds what `pagurus lab up --machines` would. It needs the packages' lists of\ndependencies, and the network.",
		Example: "  sudo pagurus lab image --suite bookworm",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("machines are made by root: try `sudo pagurus lab image`")
			}
			unlock, err := lockLab()
			if err != nil {
				return err
			}
			defer unlock()
			if had, err := readLab(); err == nil && had.Machines != nil {
				return errors.New("a lab of machines is up, and runs on what would be replaced: `pagurus lab down` first")
			}
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			l := lab{Machines: m, Hosts: m.Xen + 1}
			if err := l.checkMachines(func(string) bool { return false }); err != nil {
				return err
			}
			if err := l.prepare(ctx, std); ctx.Err() != nil && err != nil {
				return cli.Exit{Code: 130, Err: errors.New("the build was cancelled; nothing of it is left")}
			} else if err != nil {
				return err
			}
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(std.out).Encode(m.Images)
			}
			for _, suite := range m.Suites {
				if _, err := fmt.Fprintf(std.out, "%s: %s\n", suite, m.Images[suite]); err != nil {
					return err
				}
			}
			if m.Xen > 0 {
				_, err = fmt.Fprintf(std.out, "xen: %s\n", m.XenImage)
			}
			return err
		},
	}
	m.addFlags(cmd.Flags())
	for _, hidden := range []string{machinesFlag, machineCPUsFlag, machineMemFlag, machinePassingFlag} {
		_ = cmd.Flags().MarkHidden(hidden) // it exists
	}
	return cmd
}

func wayCommand() *cobra.Command {
	return &cobra.Command{
		Use: wayVerb, Short: "Be the way to the lab's controller", Example: "  pagurus lab " + wayVerb, Hidden: true, Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			return runWay(ctx)
		},
	}
}

// powerOn starts a machine, and returns when it can be asked.
func (l lab) powerOn(ctx context.Context, n int) (string, error) {
	begun := time.Now()
	if err := l.power(n).Start(); err != nil {
		return "", err
	}
	if err := l.awaitMachine(ctx, n); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s has started, in %s", hostName(n), view.Took(time.Since(begun))), nil
}

// block cuts host n off TCP connections to and from a port, in both directions; 0: no port.
func (l lab) block(n int, port uint16) error {
	return l.namespace(n).Do(func() error {
		return errors.Join(badlink.Block(sockets.LAN, port), badlink.Block(labnet.Uplink, port))
	})
}

// setClock sets a machine's clock, of the kernel and of the computer.
func setClock(ctx context.Context, l lab, n int, args []string) (string, error) {
	size, back := strings.CutPrefix(strings.TrimPrefix(args[0], "+"), "-")
	by, err := cli.ParseDuration(size)
	if err != nil {
		return "", fmt.Errorf("%q is not a time to set the clock by, like +3h or -10m", args[0])
	}
	if back {
		by = -by
	}
	now, err := l.inside(ctx, n, "sh", "-ec", fmt.Sprintf("date -u -s @$(($(date +%%s) + %d)) >/dev/null; hwclock --systohc --utc || :; date -u +%%FT%%TZ", int64(by/time.Second)))
	return fmt.Sprintf("%s: it is %s there", hostName(n), now), err
}

// filling is the file that fills a machine's disk.
const filling = "/var/lib/lab-filling"

// fillDisk has one file take all of a machine's disk but so much.
func fillDisk(ctx context.Context, l lab, n int, args []string) (string, error) {
	left, script := int64(0), "rm -f "+filling
	if len(args) == 0 || args[0] != "all" {
		var err error
		if left, err = cli.ParseBytes(cmp.Or(append(args, "0")[0], "0")); err != nil {
			return "", err
		}
		// With what is reserved for root, who runs the daemons. A file system keeps some of its
		// last blocks for itself.
		script += fmt.Sprintf(`
free=$(($(stat -f -c '%%f * %%S' /var/lib) - %[1]d)) last=$((8 << 20))
[ $free -le 0 ] || fallocate -l $free %[2]s 2>/dev/null || { [ $free -le $last ] || fallocate -l $((free - last)) %[2]s; head -c $last /dev/zero >>%[2]s 2>/dev/null || :; }`, left, filling)
	}
	free, err := l.inside(ctx, n, "sh", "-ec", script+"\nsync\necho $(($(stat -f -c '%f * %S' /var/lib)))")
	if err != nil {
		return "", err
	}
	bytes, err := strconv.ParseInt(free, 10, 64)
	return fmt.Sprintf("%s has %s free", hostName(n), view.Bytes(bytes)), err
}

// terminal are the options of a shell that has a terminal if this command has one.
func terminal(in io.Reader) []string {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return []string{"-t"}
	}
	return nil
}
