// Package guestlink is the wire between the agent of a host and the guest
// agent inside a guest: calls and answers over a stream of bytes that a
// migration, or a restart of the agent, may cut at any byte, with bytes of
// before still standing in buffers on the way.
//
// Nothing on the link is believed to arrive. The host's side repeats a call
// until it is answered, in whatever connection; the guest's side may carry it
// out more than once. So every call means the same however often it is made,
// and streams are read and written by offset. A call that waits (for output,
// for a program's end) waits in the guest for at most pollLimit and is then
// made again: when nothing happens, nothing wakes the guest more often.
//
// It imports nothing but fleet and the standard library, because it is part
// of the guest agent, and it must not know what calls do. Its tests run
// against itself over streams that lose, repeat and invent bytes; the real
// thing is tested by cmd/pagurus-guest in QEMU.
package guestlink

import (
	"encoding/json"
	"time"

	"pagurus/fleet"
)

// What both sides have agreed on.
const (
	// pollLimit is how long the guest's side lets one call wait.
	pollLimit = 20 * time.Second
	// ackAfter is how long a call may take before the guest's side says that
	// it has it, which keeps the host's side from repeating it.
	ackAfter = 100 * time.Millisecond
	// maxChunk bounds the bytes of a stream in one message, so that they fit a
	// frame as base64.
	maxChunk = 32 << 10
	// traceBytes bounds the traces in one answer, so that they fit a frame with
	// what is around them; the rest is asked for next.
	traceBytes = 56 << 10
	// allTraceBytes bounds what is believed of one guest's traces: what a few
	// hundred ranks with much to tell make, and no more than one message to the
	// controller may hold.
	allTraceBytes = 3 << 20
)

// The calls.
const (
	callPing     = "ping" // answered at once: the guest agent is there
	callSetup    = "setup"
	callLaunch   = "launch"
	callWait     = "wait"
	callRead     = "read"
	callWrite    = "write"
	callSignal   = "signal"
	callTrace    = "trace"
	callCache    = "cache"
	callTopology = "topology"
	callShutdown = "shutdown"
)

// request is one try of one call.
type request struct {
	Session uint64          `json:"s"`  // of the Client; answers to another's calls are not for it
	ID      uint64          `json:"id"` // of the call in its session, the same in each try
	Call    string          `json:"call"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// reply answers a request, or says that it is being worked on.
type reply struct {
	Session uint64          `json:"s"`
	ID      uint64          `json:"id"`
	Ack     bool            `json:"ack,omitempty"`   // the call is being carried out
	Again   bool            `json:"again,omitempty"` // it waited long enough; make a new call of it
	Error   string          `json:"error,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// stream names a place in a stream, with the bytes that begin there.
type stream struct {
	Program string `json:"program"`
	Name    string `json:"name,omitempty"`
	Offset  int64  `json:"offset"`
	Data    []byte `json:"data,omitempty"`
	EOF     bool   `json:"eof,omitempty"`
}

// signalCall passes a signal on to what a program has started.
type signalCall struct {
	Program string       `json:"program"`
	Signal  fleet.Signal `json:"signal"`
}

// traceCall asks for traces from a place in their list on.
type traceCall struct {
	Query fleet.TraceQuery `json:"query"`
	First int              `json:"first,omitempty"`
}

// cacheCall asks what the guest could do without, and whether it shall.
type cacheCall struct {
	Drop bool `json:"drop"`
}

// result is the body of every answer; which fields count is the call's affair.
type result struct {
	Exit fleet.Exit `json:"exit"`
	Data []byte     `json:"data,omitempty"`
	EOF  bool       `json:"eof,omitempty"`
	Next int64      `json:"next,omitempty"`

	Cache    *fleet.Cache    `json:"cache,omitempty"`
	Topology *fleet.Topology `json:"topology,omitempty"`

	Traces []json.RawMessage `json:"traces,omitempty"` // each a fleet.Trace; Next is the place of the first that is missing, 0: none is
}
