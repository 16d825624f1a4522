package fleet

// Names of flags that messages of other packages mention. The flags are defined with
// these names, so that no message names a flag that does not exist.
const (
	HostFlag  = "host"       // of an agent: the name of its host
	RunFlag   = "run"        // of an agent and a controller: the folder for files that outlive it
	SiteFlag  = "site"       // of an agent: its host's site
	LeaseFlag = "lease"      // of an agent: for how long its guests may run on without the controller
	UIDsFlag  = "guest-uids" // of an agent: the user IDs of its virtual machines
	SmallFlag = "small"      // of an agent: containers only, in little memory

	EncryptionFlag        = "encryption"         // of an agent and a controller: how traffic between hosts is protected
	WireGuardPortFlag     = "wireguard-port"     // of an agent
	InternetFlag          = "internet"           // of an agent: whether jobs may use its host's way to the Internet
	InternetBandwidthFlag = "internet-bandwidth" // of an agent

	RelayFlag          = "relay"           // of an agent: whether its host relays for others
	RelayPortFlag      = "relay-port"      // of an agent: the first port to relay at
	RelayBandwidthFlag = "relay-bandwidth" // of an agent

	CapFlag       = "cap"        // of run and host policy: a share of the CPUs
	DeviceFlag    = "device"     // of run: a device of its host for each guest
	DeviceNetFlag = "device-net" // of an agent: the card of which guests get virtual functions
	VLANsFlag     = "vlans"      // of a controller: the VLANs of those cards
	LendFlag      = "lend"       // of an agent: devices that guests may have
	ExportFlag    = "export"     // of run: the directory that guests share
	FilesFlag     = "files"      // of run: more directories
	GrowFlag      = "grow"       // of run: how many guests its program may ask for
	GuestsFlag    = "guests"     // of run
	MemFlag       = "mem"        // of run: memory of each guest
	NetFlag       = "net"        // of run: what guests reach
	NoTraceFlag   = "no-trace"   // of run

	CheckpointFlag = "checkpoint" // of run
	NowFlag        = "now"        // of run: do not wait for room
	RestartsFlag   = "restarts"   // of run
	TimeFlag       = "time"       // of run: how long its program may run

	BandwidthFlag   = "bandwidth"    // of migrate, drain and agent
	CompressFlag    = "compress"     // of migrate and drain
	DeadlineFlag    = "deadline"     // of migrate
	MaxDowntimeFlag = "max-downtime" // of migrate: the maximum downtime
	ModeFlag        = "mode"         // of migrate
	PageCacheFlag   = "page-cache"   // of migrate and drain

	CoresFlag     = "cores"      // of isolate
	HoursFlag     = "hours"      // of host policy
	IdleAfterFlag = "idle-after" // of host policy
	VacateFlag    = "vacate"     // of host policy
)
