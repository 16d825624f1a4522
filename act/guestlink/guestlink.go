// Package guestlink is the protocol between a host's agent and the guest agent: calls and
// answers over a byte stream. A migration or an agent's restart may cut the stream at any
// byte, and leave earlier bytes in buffers on the way.
//
// No message is assumed to arrive. The host's side repeats a call until it is answered,
// over any connection; the guest's side may carry it out more than once. So every call is
// idempotent, and streams use offsets. A call that waits (for output, for a program's
// end) waits in the guest for at most pollLimit and is then repeated, so an idle guest is
// woken no more often.
//
// Every message says which version of the protocol its sender speaks. A guest agent lives as
// long as its guest, through upgrades of the hosts' agents and moves between hosts of
// different versions, and nobody can upgrade it. So the guest's side serves whoever calls,
// and the host's side speaks with all guests back to oldest, and with those one newer.
//
// It imports only fleet and the standard library, because it is part of the guest agent,
// and it must not know what calls do. Its tests run both sides over streams that lose,
// repeat and invent bytes; cmd/pagurus-guest's test it in QEMU.
package guestlink

import (
	"encoding/json"
	"time"

	"pagurus/fleet"
)

// Constants that both sides share.
const (
	// pollLimit is how long the guest's side lets one call wait.
	pollLimit = 20 * time.Second
	// ackAfter is how long a call may take before the guest acknowledges it, so that the
	// host does not repeat it.
	ackAfter = 100 * time.Millisecond
	// maxChunk limits a message's bytes of a stream, which must fit a frame as base64.
	maxChunk = 32 << 10
	// traceBytes limits the traces in one answer, so that it fits a frame; the rest comes
	// with further calls.
	traceBytes = 56 << 10
	// allTraceBytes limits the accepted traces of one guest: enough for a few hundred
	// busy ranks, and within one message to the controller.
	allTraceBytes = 3 << 20
	// topologyBytes limits what a guest says that it sees, which its host reports every second.
	topologyBytes = 16 << 10
	// filesBytes limits what it says of its open files, in one answer.
	filesBytes = 48 << 10
	// errorBytes limits what it says of why a call failed, which is stored.
	errorBytes = 4 << 10
	// signalBytes limits the name of the signal that ended a program.
	signalBytes = 32
	// leastPoll is how often at most the host repeats a call whose wait the guest ends.
	leastPoll = 100 * time.Millisecond
	// unaskedBytes is how much may come without an answer that a call waits for; more than the buffers on
	// the way hold, and than any answer is long. Then each 16 KiB cost the guest floodPause.
	unaskedBytes = 1 << 20
	floodPause   = 20 * time.Millisecond
	// oldest is the oldest guest agent that the host's side speaks with. Raising it ends
	// jobs of older guests.
	oldest = 0
)

// The calls.
const (
	callPing     = "ping" // answered at once: the guest agent runs
	callSetup    = "setup"
	callLaunch   = "launch"
	callWait     = "wait"
	callRead     = "read"
	callWrite    = "write"
	callSignal   = "signal"
	callTrace    = "trace"
	callCache    = "cache"
	callTopology = "topology"
	callFiles    = "files"
	callShutdown = "shutdown"
)

// request is one try of one call.
type request struct {
	Protocol int             `json:"v"`  // what the host's agent speaks
	Session  uint64          `json:"s"`  // of the Client, which ignores answers to other sessions
	ID       uint64          `json:"id"` // of the call in its session, the same in each try
	Call     string          `json:"call"`
	Body     json.RawMessage `json:"body,omitempty"`
}

// reply answers or acknowledges a request.
type reply struct {
	Protocol int             `json:"v"` // what the guest agent speaks
	Session  uint64          `json:"s"`
	ID       uint64          `json:"id"`
	Ack      bool            `json:"ack,omitempty"`   // the call is in progress
	Again    bool            `json:"again,omitempty"` // the wait was too long; repeat as a new call
	Error    string          `json:"error,omitempty"`
	Body     json.RawMessage `json:"body,omitempty"`
}

// stream is a position in a stream, with the bytes there.
type stream struct {
	Program string `json:"program"`
	Name    string `json:"name,omitempty"`
	Offset  int64  `json:"offset"`
	Data    []byte `json:"data,omitempty"`
	EOF     bool   `json:"eof,omitempty"`
}

// signalCall sends a signal to a program's ranks.
type signalCall struct {
	Program string       `json:"program"`
	Signal  fleet.Signal `json:"signal"`
}

// traceCall requests traces from a position in their list.
type traceCall struct {
	Query fleet.TraceQuery `json:"query"`
	First int              `json:"first,omitempty"`
}

// result is the body of every answer; its used fields depend on the call.
type result struct {
	Exit fleet.Exit `json:"exit"`
	Data []byte     `json:"data,omitempty"`
	EOF  bool       `json:"eof,omitempty"`
	Next int64      `json:"next,omitempty"`

	Cache    *fleet.Cache    `json:"cache,omitempty"`
	Topology *fleet.Topology `json:"topology,omitempty"`

	Files *fleet.OpenFiles `json:"files,omitempty"`
	Said  *fleet.Said      `json:"said,omitempty"`

	Traces []json.RawMessage `json:"traces,omitempty"` // fleet.Trace each; Next is the position of the next one, 0: none
}
