package roles

import (
	"net/netip"
	"time"

	"pagurus/fleet"
)

// ByHandVerb is the agent's verb that drives QEMU by hand on its host, for `pagurus bench
// migration --against qemu`. It reads a HandSetting and then HandOrders, a line of JSON each,
// and answers each with a HandAnswer. When its input ends it removes all that it has made.
const ByHandVerb = "by-hand"

// HandSetting is one end of a move by hand.
type HandSetting struct {
	Here        netip.Addr      `json:"here"`             // this host's address
	Others      []netip.Addr    `json:"others"`           // those of the other ends
	Guests      []int           `json:"guests,omitempty"` // which of the two guests begin here
	Accelerator string          `json:"accelerator,omitempty"`
	CPU         string          `json:"cpu,omitempty"` // as fleet.Guest has it
	Image       fleet.Image     `json:"image"`
	Need        fleet.Resources `json:"need"`    // of each of the two guests
	Command     []string        `json:"command"` // that two ranks run, one in each guest
}

// HandOrder is what an end is to do.
type HandOrder struct {
	Do     string `json:"do"`
	To     string `json:"to,omitempty"`     // of HandSend: where the other end waits
	Offset int64  `json:"offset,omitempty"` // of HandRead: how much of the output is known
}

// What an end is to do.
const (
	HandStart   = "start"   // the guests that begin here
	HandRun     = "run"     // the program, in the first guest, when both are started
	HandReceive = "receive" // the second guest
	HandSend    = "send"    // the second guest
	HandRead    = "read"    // of the program's output, waiting for some
)

// HandAnswer is what came of it.
type HandAnswer struct {
	Error    string          `json:"error,omitempty"`
	Can      fleet.Abilities `json:"can,omitzero"`       // to the setting
	Listen   string          `json:"listen,omitempty"`   // to HandReceive
	Total    time.Duration   `json:"total_ns,omitempty"` // to HandSend, by QEMU, as what follows
	Downtime time.Duration   `json:"downtime_ns,omitempty"`
	Sent     int64           `json:"sent_bytes,omitempty"`
	Said     string          `json:"said,omitempty"` // to HandRead
}
