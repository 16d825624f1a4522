package xen

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"pagurus/act/host/passage"
	"pagurus/fleet"
)

// The files in a guest's folder, in which its warden and the programs of Xen work. Paths are relative, because a UNIX socket's
// path has at most 107 bytes.
const (
	specFile      = "warden.json"
	configFile    = "domain.cfg"
	endingFile    = "ending.json"
	controlSocket = "control.sock"
	linkSocket    = "link.sock"
	saverSocket   = "saver.sock"
	consoleLog    = "console.log"
	ownLog        = "warden.log"
)

// spec is what a warden makes and keeps. It is written before the warden starts.
type spec struct {
	Domain      string    `json:"domain"` // its name
	CPUs        int       `json:"cpus"`
	MemoryBytes int64     `json:"memory_bytes"`
	Kernel      string    `json:"kernel"`
	Words       string    `json:"words,omitempty"` // of the image, for its command line
	Initrd      string    `json:"initrd"`
	Root        string    `json:"root"` // the image's file
	Share       share     `json:"share"`
	Port        Port      `json:"port"`
	LinkScript  string    `json:"link_script"`
	DiskScript  string    `json:"disk_script"`
	Tools       tools     `json:"tools"`
	Incoming    *incoming `json:"incoming,omitempty"` // nil: it boots
}

// incoming is the move by which a guest comes.
type incoming struct {
	Address netip.Addr   `json:"address"`
	Move    passage.Move `json:"move"`
}

// tools are Xen's programs.
type tools struct {
	XL     string `json:"xl"`     // of the hypervisor that runs
	Helper string `json:"helper"` // libxl-save-helper
}

// kernelArgs are a guest's: as a virtual machine's where Xen has the same. The console that they name is xenconsoled's. A
// guest that panics ends.
const kernelArgs = "console=hvc0 quiet panic=-1 mitigations=off init_on_alloc=0 random.trust_cpu=on tsc=reliable cryptomgr.notests noreplace-smp" +
	" initcall_blacklist=jent_mod_init,load_system_certificate_list,bpf_tcp_ca_kfunc_init,bpf_dummy_struct_ops_init,trace_eval_init,init_encrypted,crypto_kdf108_init"

// config is the domain's, as xl reads it. The time stamp counter is the processor's own, as for a virtual machine: Xen's emulated
// one costs an exit each time. Nothing but the warden acts when the domain ends.
func (s spec) config(root string) string {
	lines := []string{
		`type = "pvh"`,
		"name = " + quoted(s.Domain),
		"uuid = " + quoted(uuidOf(s.Domain)),
		"kernel = " + quoted(s.Kernel),
		"ramdisk = " + quoted(s.Initrd),
		"extra = " + quoted(strings.TrimSpace(kernelArgs+" "+s.Words)),
		fmt.Sprintf("memory = %d", (s.MemoryBytes+mebi-1)/mebi),
		fmt.Sprintf("vcpus = %d", s.CPUs),
		fmt.Sprintf("cpu_weight = %d", s.Share.Weight),
		fmt.Sprintf("cap = %d", s.Share.Cap),
		`tsc_mode = "native"`,
		fmt.Sprintf("vif = [ %s ]", quoted("mac="+s.Port.MAC+",vifname="+s.Port.Interface+",script="+s.LinkScript)),
		fmt.Sprintf("disk = [ %s ]", quoted("format=raw,vdev=xvda,access=ro,backendtype=phy,script="+s.DiskScript+",target="+root)),
		`on_poweroff = "preserve"`, `on_reboot = "preserve"`, `on_watchdog = "preserve"`, `on_crash = "preserve"`, `on_soft_reset = "preserve"`,
	}
	return strings.Join(lines, "\n") + "\n"
}

const mebi = 1 << 20

// quoted is text as xl's configuration has it, which knows no escapes.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`"`, "", "\n", "", "\\", "").Replace(text) + `"`
}

// What a warden can be asked.
const (
	askStatus  = "status"
	askCopy    = "copy"
	askCancel  = "cancel"
	askSwitch  = "switch"
	askRun     = "run"
	askSuspend = "suspend"
)

// question is one line to a warden.
type question struct {
	Ask  string     `json:"ask"`
	Copy *copyOrder `json:"copy,omitempty"`
}

// copyOrder begins a copy, or means the one under way.
type copyOrder struct {
	Migration      fleet.MigrationID `json:"migration"`
	Place          string            `json:"place"` // the target's, as this host calls it
	Move           passage.Move      `json:"move"`
	BytesPerSecond int64             `json:"bytes_per_second,omitempty"` // 0: no limit
}

// answer is one line from a warden.
type answer struct {
	Refused string `json:"refused,omitempty"` // why; nothing was done
	Status  status `json:"status"`
}

// stage is how far a guest is, in the eyes of its warden.
type stage string

const (
	making    stage = "making"    // xl makes it
	running   stage = "running"   // here
	yielding  stage = "yielding"  // suspended here for the host's owner
	waiting   stage = "waiting"   // for its state
	arriving  stage = "arriving"  // its state comes
	whole     stage = "whole"     // all of it is here, and it was not let run yet
	suspended stage = "suspended" // for its move, and the target may not have it yet
	left      stage = "left"      // the target has it, or may have it: it never runs here again
	broken    stage = "broken"    // it cannot be had; Why says so
)

// status is what a warden knows.
type status struct {
	Stage stage     `json:"stage"`
	Why   string    `json:"why,omitempty"`
	Place string    `json:"place,omitempty"` // where the guest is received
	Copy  *progress `json:"copy,omitempty"`  // of the last copy from here
}

// progress is how far a copy is.
type progress struct {
	Migration   fleet.MigrationID `json:"migration"`
	Place       string            `json:"place"`
	Begun       time.Time         `json:"begun"`
	Rounds      int               `json:"rounds"`
	RoundBytes  int64             `json:"round_bytes"` // that this round has to send
	RoundSent   int64             `json:"round_sent"`
	SentBytes   int64             `json:"sent_bytes"`
	Held        bool              `json:"held"`              // the rounds are over; the guest runs until the switch
	Given       bool              `json:"given"`             // the target was told that the guest is its own
	Done        bool              `json:"done"`              // the target has said that it has it
	Failure     string            `json:"failure,omitempty"` // why it is over
	SuspendedAt time.Time         `json:"suspended_at,omitzero"`
	Downtime    time.Duration     `json:"downtime,omitempty"`
	Elapsed     time.Duration     `json:"elapsed,omitempty"` // of all of it
}

// ending is how a domain ended by itself, which its warden leaves.
type ending struct {
	Reason string `json:"reason"` // one of reasons, or "destroyed"
}
