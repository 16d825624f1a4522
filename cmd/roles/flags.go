package roles

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/cgroup"
	"pagurus/act/endnotice"
	"pagurus/act/host"
	"pagurus/act/owner"
	"pagurus/act/vault"
	"pagurus/fleet"
	"pagurus/show/cli"
)

// Flags that messages name, besides those in fleet.
const (
	cpusFlag        = "cpus"
	firstCoreFlag   = "first-core"
	snapshotsFlag   = "snapshots"
	ownerCPUFlag    = "owner-cpu"
	addressFlag     = "address"
	acceleratorFlag = "accelerator"
	cpuFlag         = "cpu"
	sharedFlag      = "shared"
)

// GroupFlag is the flag that names the control group of a host's guests.
const GroupFlag = "group"

// Loopback is the address of a host that no other host has to reach.
const Loopback = "127.0.0.1"

// Log returns a logger that writes what an administrator needs.
func Log(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// Agent holds the configuration of an agent.
type Agent struct {
	Name        string
	RunDir      string
	StateDir    string
	ImageDir    string
	Address     string
	Site        string
	Accelerator string
	CPU         string   // of virtual machines that start here
	Snapshots   int      // of booted guests, for each image
	FirstCore   int      // the first core to which guests are pinned
	Group       string   // of all guests' processes
	OwnerCPU    string   // whose CPU use counts as the owner's
	Owners      []string // users of the machine who are its owners: names or numbers
	CPUs        float64  // CPUs that all guests may use; 0: all
	Slice       Slice
	Exitless    bool   // tuned guests keep tickless CPUs while these are idle
	Bandwidth   int64  // bytes a second of each leaving guest; 0: no limit
	Memory      int64  // for guests; 0: the machine's less its reserve
	Small       bool   // containers only, in little memory
	Metrics     string // TCP address for monitoring; empty: none
	Verbose     bool
	Lease       time.Duration // for which guests run on without the controller; 0: for ever
	Shared      []string      // directories that hosts share anyway
	GuestUIDs   string
	UIDs        host.UIDs // GuestUIDs, read

	Encryption    fleet.Encryption // what this host may use of what the cluster wants
	WireGuardPort uint16

	VaultDir   string // folder of checkpoints; empty: in StateDir
	VaultQuota int64  // bytes that it may have on disk; 0: no limit
	VaultEach  int64  // bytes of one user's checkpoints, by their size; 0: no limit
	VaultPort  uint16 // where other hosts reach it; 0: any

	Images  fleet.ImageLimits   // that it has fetched
	Scratch fleet.ScratchLimits // of guests' own files

	VaultBucket vault.Bucket // where VaultDir is an S3 URL; its Host is set by who opens it

	Health      fleet.HealthPolicy
	HealthCheck string        // a program that says whether the host is well
	HealthEvery time.Duration // between two checks

	NoticeWords []string
	Notices     []fleet.EndNoticeKind // NoticeWords, read

	Relay          fleet.Relaying // for hosts that do not reach each other
	RelayPort      uint16         // the first
	RelayBandwidth int64          // bytes a second

	Lending []string // PCI addresses of devices that guests may have
	Card    string   // the interface of the card of which guests get virtual functions; empty: none

	Internet          bool  // jobs may use this host's way to the Internet
	InternetBandwidth int64 // bytes a second of each
}

// Add defines the flags of an agent.
func (f *Agent) Add(flags *pflag.FlagSet) {
	name, err := os.Hostname()
	if err != nil {
		name = "host"
	}
	flags.StringVar(&f.Name, fleet.HostFlag, name, "this host's name")
	flags.StringVar(&f.Address, addressFlag, "", "this host's IP address on the network that hosts share (default: the one it reaches the controller from; on the controller's machine the one that others reach)")
	flags.StringVar(&f.Site, fleet.SiteFlag, "", "this host's site, such as a room or a rack, for pagurus migrate --to-site")
	refusing(flags, fleet.SiteFlag, fleet.RefusedSite)
	flags.Float64Var(&f.CPUs, cpusFlag, 0, "CPUs that all guests together may use (default: no limit)")
	flags.Var(&f.Slice, "slice", "time slice of guests with a class or a ceiling, 30 percent longer for gold and shorter for bronze; 30ms suits those that mostly wait for messages; adaptive: of each guest by what it does, as far as it measures better (0: the scheduler's own)")
	flags.BoolVar(&f.Exitless, "exitless", false, "tuned guests on tickless CPUs (see pagurus isolate --boot) keep these while they are idle, so that the kernel hands them their timers without stopping them; the CPUs count as busy then")
	cli.Rate(flags, &f.Bandwidth, fleet.BandwidthFlag, "send at most this many bytes a second for each guest that leaves this host, like 200M (default: no limit)")
	flags.StringVar(&f.Accelerator, acceleratorFlag, fleet.AnyAccelerator, "what virtual machines run with: auto, KVM where a trial finds that it works; kvm, wherever /dev/kvm opens, without the trial; or emulation")
	refusing(flags, acceleratorFlag, fleet.RefusedAccelerator)
	flags.StringVar(&f.CPU, cpuFlag, fleet.HostCPU, "the CPU of virtual machines that start here with KVM: host, with which they move between equal processors; x86-64-v2, x86-64-v3 or x86-64-v4, between all that have that level; or a model of QEMU's with features, like qemu64,-x2apic")
	refusing(flags, cpuFlag, fleet.RefusedCPU)
	flags.IntVar(&f.Snapshots, snapshotsFlag, 4, "snapshots of booted guests to keep with each image, so that the next emulated guest starts in a second (0: none)")
	flags.StringVar(&f.Group, GroupFlag, "", "")
	flags.IntVar(&f.FirstCore, firstCoreFlag, 0, "")
	for _, name := range []string{GroupFlag, firstCoreFlag} { // for several hosts on one machine
		_ = flags.MarkHidden(name)
	}
	flags.StringVar(&f.OwnerCPU, ownerCPUFlag, string(owner.Machine), "which CPU use counts as the owner's: machine (all but Pagurus's), network (of processes in this network namespace) or cgroup:PATH")
	flags.StringSliceVar(&f.Owners, "owners", nil, "users of this machine who are its owners, like ada or 1000: they may use pagurus owner (default: root alone)")
	cli.Size(flags, &f.Memory, "memory", "memory for guests (default: all but 1 GiB, or half of it if that is less)")
	flags.BoolVar(&f.Small, fleet.SmallFlag, false, "run containers only, and take little memory: for machines of some hundred MiB")
	f.Lease = fleet.UsualLease
	AddLease(flags, &f.Lease)
	flags.StringSliceVar(&f.Shared, sharedFlag, nil, "directories that hosts share anyway, like /home,/scratch: containers see them directly where another host has the same ones")
	flags.StringVar(&f.GuestUIDs, fleet.UIDsFlag, host.UsualUIDs.String(), "user IDs that virtual machines run as, one each, which nobody else may have; as many guests as IDs can be here")
	encryption(flags, &f.Encryption, "auto, wireguard or none: how this host may encrypt traffic between hosts, if its cluster does: as the cluster wants, by the kernel's WireGuard alone, or not at all")
	flags.Uint16Var(&f.WireGuardPort, fleet.WireGuardPortFlag, fleet.WireGuardPort, "UDP port at which other hosts reach this one's WireGuard device")
	f.addRelay(flags)
	f.addInternet(flags)
	f.addHealth(flags)
	f.addNotices(flags)
	f.addLending(flags)
	f.addVault(flags)
	cli.Size(flags, &f.Images.All, "image-quota", "keep images that this host has fetched, with snapshots of booted guests, of at most this size, like 50G; what no guest runs goes first (default: what the disk has)")
	cli.Size(flags, &f.Images.Each, "image-quota-per-user", "the most of one user's images (default: no limit)")
	cli.Size(flags, &f.Scratch.All, "scratch-quota", "what all containers' own files may take on this host, outside their jobs' directories, like 8G (default: their memory)")
	cli.Size(flags, &f.Scratch.Each, "scratch-quota-per-user", "the most of one user's containers (default: no limit)")
	addMetrics(flags, &f.Metrics)
	folders(flags, &f.RunDir, &f.StateDir, &f.ImageDir)
	flags.BoolVar(&f.Verbose, "verbose", false, "log more")
	cli.MayBeEmpty(flags, addressFlag, fleet.SiteFlag, acceleratorFlag, cpuFlag, GroupFlag)
}

// AddLease defines the flag with a host's lease; to has the one that is usual.
func AddLease(flags *pflag.FlagSet, to *time.Duration) {
	flags.Var((*leaseValue)(to), fleet.LeaseFlag, "for how long guests of this host run on when the controller is not heard, from "+fleet.ShortDuration(fleet.ShortestLease)+" on; then they are stopped, and their jobs know that they are lost; off: they run on, and a job whose host is dead waits for it for ever")
}

// LabLease is the lease of a lab's hosts. One machine does the work of all of them, and may be busy
// for minutes.
const LabLease = 10 * time.Minute

// LeaseOfOne are more flags for an agent whose controller is on the same machine and ends with it.
// Who ends both wants to find guests later, and so there is no lease unless one was chosen.
func LeaseOfOne(given *pflag.FlagSet) []string {
	if given.Changed(fleet.LeaseFlag) {
		return nil
	}
	return []string{"--" + fleet.LeaseFlag + "=" + fleet.NoLease}
}

// LeaseWord is a lease as the flag's value.
func LeaseWord(length time.Duration) string { return (*leaseValue)(&length).String() }

// leaseValue is a lease as a flag's value.
type leaseValue time.Duration

func (v *leaseValue) String() string {
	if *v == 0 {
		return fleet.NoLease
	}
	return fleet.ShortDuration(time.Duration(*v))
}

// Type is not "duration", whose values are judged as lengths of time alone.
func (v *leaseValue) Type() string { return "lease" }

func (v *leaseValue) Set(s string) error {
	length, err := cli.ParseDuration(s)
	if s == fleet.NoLease {
		length, err = 0, nil
	} else if err == nil && length == 0 {
		length = -1 // only the word means none
	}
	if err != nil {
		return fmt.Errorf("%q is not a length of time: %s", s, fleet.RefusedLease(-1))
	}
	if reason := fleet.RefusedLease(length); reason != "" {
		return errors.New(reason)
	}
	*v = leaseValue(length)
	return nil
}

// usualRelayBandwidth is about 100 Mbit/s, in the form that flags have: 12.5M.
const usualRelayBandwidth = 25 << 19

// refusing judges a flag by what is wrong with its value; empty: nothing.
func refusing(flags *pflag.FlagSet, name string, refused func(string) string) {
	cli.Judge(flags, name, func(s string) error {
		if reason := refused(s); reason != "" {
			return errors.New(reason)
		}
		return nil
	})
}

// addRelay defines the flags about relaying for others.
func (f *Agent) addRelay(flags *pflag.FlagSet) {
	relay := string(fleet.RelayOn)
	f.Relay, f.RelayBandwidth = fleet.RelayOn, usualRelayBandwidth
	flags.StringVar((*string)(&f.Relay), fleet.RelayFlag, relay, "on or off: whether this host, if it is not behind NAT, relays for hosts that do not reach each other directly; it cannot read what it relays")
	refusing(flags, fleet.RelayFlag, func(s string) string { return fleet.Relaying(s).Refused() })
	flags.Uint16Var(&f.RelayPort, fleet.RelayPortFlag, fleet.RelayFirstPort, fmt.Sprintf("first of the %d UDP ports at which this host relays", fleet.MostRelayed))
	cli.Rate(flags, &f.RelayBandwidth, fleet.RelayBandwidthFlag, "relay at most this many bytes a second, like 10M")
}

// addInternet defines the flags about leading jobs to the Internet.
func (f *Agent) addInternet(flags *pflag.FlagSet) {
	f.InternetBandwidth = usualRelayBandwidth
	flags.BoolVar(&f.Internet, fleet.InternetFlag, false, "let jobs that ask for it use this host's way to the Internet: their guests reach public addresses, and nothing of this host or its network")
	cli.Rate(flags, &f.InternetBandwidth, fleet.InternetBandwidthFlag, "lead at most this many bytes a second of each job to and from the Internet, like 10M")
}

const (
	vaultFlag      = "vault"
	vaultOff       = "off"
	vaultQuotaFlag = "vault-quota"
	vaultPortFlag  = "vault-port"

	vaultEndpointFlag  = "vault-endpoint"
	vaultRegionFlag    = "vault-region"
	vaultKeysFlag      = "vault-keys"
	vaultAuthorityFlag = "vault-authority"
)

// NoVault reports whether this host's owner wants no checkpoints on it.
func (f Agent) NoVault() bool { return f.VaultDir == vaultOff }

// Bucket is where this host's checkpoints are kept, in the name of a host; nil: not in a bucket.
func (f Agent) Bucket(host string) *vault.Bucket {
	if !strings.HasPrefix(f.VaultDir, vault.Scheme) {
		return nil
	}
	b := f.VaultBucket
	b.URL, b.Host = f.VaultDir, host
	return &b
}

// addVault defines the flags about the checkpoints that this host keeps.
func (f *Agent) addVault(flags *pflag.FlagSet) {
	flags.StringVar(&f.VaultDir, vaultFlag, "", "folder of the checkpoints that this host keeps, or s3://BUCKET/PREFIX, or off: it keeps none (default: vault in --state)")
	cli.Size(flags, &f.VaultQuota, vaultQuotaFlag, "keep checkpoints of at most this size, like 200G (default: all but a tenth of the disk)")
	cli.Size(flags, &f.VaultEach, vaultQuotaFlag+"-per-user", "the most of one user's checkpoints, by the size that pagurus checkpoint ls shows, like 40G (default: no limit)")
	flags.Uint16Var(&f.VaultPort, vaultPortFlag, 0, "TCP port at which other hosts reach this host's checkpoints (default: any free one)")
	flags.StringVar(&f.VaultBucket.Endpoint, vaultEndpointFlag, "", "where the S3 server of --"+vaultFlag+" is, like https://s3.example.org:9000 (default: Amazon's)")
	flags.StringVar(&f.VaultBucket.Region, vaultRegionFlag, "", "region of the bucket (default: the server is asked)")
	flags.StringVar(&f.VaultBucket.Credentials, vaultKeysFlag, "", "file with the keys of the bucket, as ~/.aws/credentials is, of mode 0600")
	flags.StringVar(&f.VaultBucket.Authority, vaultAuthorityFlag, "", "file with the certificate (PEM) that signed the S3 server's (default: those that this machine trusts)")
	cli.MayBeEmpty(flags, vaultFlag, vaultEndpointFlag, vaultRegionFlag, vaultKeysFlag, vaultAuthorityFlag)
}

const (
	healthFlag      = "health"
	healthCheckFlag = "health-check"
	healthEveryFlag = "health-every"
)

// usualHealthEvery is how often Slurm's users usually have HealthCheckProgram run, to a factor of a few.
const usualHealthEvery = time.Minute

// addHealth defines the flags about signs that this host may fail.
func (f *Agent) addHealth(flags *pflag.FlagSet) {
	f.Health = fleet.HealthPolicies[0]
	flags.StringVar((*string)(&f.Health), healthFlag, string(f.Health), "drain, warn or off: what follows when this host shows grave signs of failing, as memory errors and a failed check are: its guests leave until they are over, they are only shown, or nobody looks")
	cli.Judge(flags, healthFlag, func(s string) error {
		if !slices.Contains(fleet.HealthPolicies, fleet.HealthPolicy(s)) {
			return errors.New("it is drain, warn or off")
		}
		return nil
	})
	flags.StringVar(&f.HealthCheck, healthCheckFlag, "", "a program, with its absolute path, that root runs again and again: while it does not exit with 0 the host counts as failing, and the last line that it prints says why (default: none)")
	cli.Judge(flags, healthCheckFlag, func(s string) error {
		if s != "" && !filepath.IsAbs(s) {
			return errors.New("it is not an absolute path")
		}
		return nil
	})
	f.HealthEvery = usualHealthEvery
	cli.Duration(flags, &f.HealthEvery, healthEveryFlag, "time between two runs of the health check")
	cli.MayBeEmpty(flags, healthCheckFlag)
}

// EndNoticesFlag is the flag with what may say that a host goes away.
const EndNoticesFlag = "end-notices"

// addNotices defines the flag about notices that this host goes away.
func (f *Agent) addNotices(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.NoticeWords, EndNoticesFlag, []string{string(fleet.ShutdownNotice), string(fleet.SleepNotice), string(fleet.BatteryNotice), endnotice.Cloud},
		"what may say that this host goes away, so that its guests leave before: shutdown and sleep (logind), battery (or a UPS), aws, google, azure (spot instances; cloud: the one in which this machine is), slurm (the job in which the agent runs); off: nothing")
}

// encryption defines the flag that chooses how traffic between hosts is protected.
func encryption(flags *pflag.FlagSet, to *fleet.Encryption, help string) {
	*to = fleet.AutoEncryption
	flags.Var((*encryptionValue)(to), fleet.EncryptionFlag, help)
}

type encryptionValue fleet.Encryption

func (v *encryptionValue) String() string { return string(*v) }
func (v *encryptionValue) Type() string   { return "string" }
func (v *encryptionValue) Set(s string) error {
	if reason := fleet.Encryption(s).Refused(); reason != "" {
		return errors.New(reason)
	}
	*v = encryptionValue(s)
	return nil
}

// Finish checks the flags and sets dependent defaults.
func (f *Agent) Finish() error {
	if f.CPUs < 0 {
		return errors.New("--" + cpusFlag + " must not be negative")
	}
	if err := f.Slice.refused(f.OnXen(), cgroup.SlicesMissing); err != nil {
		return err
	}
	for _, dir := range f.Shared {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return fmt.Errorf("--"+sharedFlag+" %s: write the whole path of a directory, without .. or a / at its end", dir)
		}
	}
	var err error
	if f.UIDs, err = host.ParseUIDs(f.GuestUIDs); err != nil {
		return fmt.Errorf("--"+fleet.UIDsFlag+" %w", err)
	}
	if f.Notices, err = endnotice.Parse(f.NoticeWords); err != nil {
		return fmt.Errorf("--"+EndNoticesFlag+": %w", err)
	}
	if f.Lending, err = parseLending(f.Lending); err != nil {
		return fmt.Errorf("--"+fleet.LendFlag+": %w", err)
	}
	if f.FirstCore < 0 {
		return errors.New("--" + firstCoreFlag + " must not be negative")
	}
	if f.WireGuardPort == 0 {
		return errors.New("--" + fleet.WireGuardPortFlag + " must be a port: other hosts have to know it")
	}
	if f.RelayPort < 1024 || f.RelayPort > 65536-fleet.MostRelayed || f.RelayPort <= f.WireGuardPort && f.WireGuardPort < f.RelayPort+fleet.MostRelayed {
		return fmt.Errorf("--"+fleet.RelayPortFlag+" must be the first of %d ports from 1024 on, without that of --"+fleet.WireGuardPortFlag, fleet.MostRelayed)
	}
	if f.RelayBandwidth <= 0 {
		return errors.New("--" + fleet.RelayBandwidthFlag + " must be more than 0: --" + fleet.RelayFlag + " off relays nothing")
	}
	if f.InternetBandwidth <= 0 {
		return errors.New("--" + fleet.InternetBandwidthFlag + " must be more than 0: without --" + fleet.InternetFlag + " nothing is led")
	}
	if b := f.Bucket(""); b != nil {
		if reason := b.Refused(); reason != "" {
			return errors.New("--" + vaultFlag + ", --" + vaultEndpointFlag + ", --" + vaultKeysFlag + ": " + reason)
		}
	}
	if f.Snapshots < 0 {
		return errors.New("--" + snapshotsFlag + " must not be negative")
	}
	if f.Group == "" {
		f.Group = Group(f.Name)
	}
	if _, err := owner.ParseScope(f.OwnerCPU); err != nil {
		return fmt.Errorf("--"+ownerCPUFlag+" %w", err)
	}
	if f.ImageDir == "" {
		f.ImageDir = filepath.Join(f.StateDir, "images")
	}
	return nil
}

// folders defines the flags that every role has.
func folders(flags *pflag.FlagSet, run, state, images *string) {
	flags.StringVar(run, fleet.RunFlag, Run, "folder for what lives as long as the machine is up")
	flags.StringVar(state, "state", State, "folder for what stays")
	flags.StringVar(images, "images", "", "folder of the images (default: images in --state)")
	cli.MayBeEmpty(flags, "images")
}

// AgentCommand returns the command of an agent; it calls run.
func AgentCommand(use string, run func(cmd *cobra.Command, f Agent, sweep bool) error) *cobra.Command {
	var f Agent
	sweep := false
	cmd := &cobra.Command{
		Use:   use,
		Short: "Be a host: run guests for a controller",
		Long: `Agent makes this machine a host of a cluster. It connects to the controller, so it
works behind a firewall. Guests keep running when it ends, and it finds them again. The
program is pagurus-agent; systemd units may name it.`,
		Example: "  pagurus join head:7461 --token TOKEN      # once\n  pagurus agent",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := configure(cmd.Flags(), AgentTable); err != nil {
				return err
			}
			if err := Blame(cmd.Flags(), f.Finish()); err != nil {
				return err
			}
			return run(cmd, f, sweep)
		},
	}
	f.Add(cmd.Flags())
	AddConfig(cmd.Flags())
	cmd.Flags().BoolVar(&sweep, "sweep", false, "end everything of Pagurus on this host, and return")
	return cmd
}
