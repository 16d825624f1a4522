package transfer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"pagurus/act/container/framing"
	"pagurus/act/container/memory"
	"pagurus/fleet"
)

// The kinds of message between source and target. Messages go from the source to the
// target unless stated otherwise. The target answers only when it is asked.
const (
	sayHello   = 'H' // the first message; answered
	sayAnswer  = 'A' // from the target
	sayAgent   = 'G' // the guest agent, if the target lacks it; an empty one ends it
	sayTree    = 'T' // about files, as Source makes it
	sayPiece   = 'P' // of memory: the description of a memory.Piece and its content
	sayImage   = 'I' // begins one of CRIU's images: its name
	sayContent = 'C' // of that image
	saySync    = 'S' // answered when everything before it is received and the target is ready for more
	sayRestore = 'R' // restore the guest from the received data; answered
)

// form was the version of the messages before there were numbers of the protocol. Agents from
// then refuse another.
const form = 4

// Hello is what a source sends first.
type Hello struct {
	Form       int               `json:"version"`  // form; Greet sets it
	Protocol   int               `json:"protocol"` // what the source speaks, as fleet.Protocol
	Guest      fleet.GuestID     `json:"guest"`
	Migration  fleet.MigrationID `json:"migration"`
	Gen        uint64            `json:"gen"`
	Word       string            `json:"word"`
	Agent      string            `json:"agent,omitempty"`       // digest of the guest agent that it runs; empty: it has the agent among its files
	Only       bool              `json:"only_asks,omitempty"`   // nothing follows
	PageServer bool              `json:"page_server,omitempty"` // the connection leads to a page server, for memory.PageClient
}

// Answer is what a target replies.
type Answer struct {
	Protocol int `json:"protocol"` // what the target speaks; Reply sets it

	Arrived bool   `json:"arrived,omitempty"` // it has the whole guest
	Failure string `json:"failure,omitempty"` // it does not have the guest and never will by this migration
	Lacks   bool   `json:"lacks,omitempty"`   // it lacks the guest agent, which must be sent before everything else
	Hides   bool   `json:"hides,omitempty"`   // it hides its own kernel's files, so the source's mounts for that are not dumped

	Folders []Folder `json:"folders,omitempty"` // the job's directories as it has them
}

// Folder is a directory of the job's files, and what has it; see container.Files.
type Folder struct {
	At       string `json:"at"`
	Identity string `json:"identity,omitempty"`
}

// Time limits: for a new connection to send its hello, for a target to receive sent data, and
// for it to remove a guest that it could not restore and to say so.
const (
	helloLimit  = 10 * time.Second
	syncLimit   = 30 * time.Second
	removeLimit = 15 * time.Second
)

// RestoredLimit is how long a source waits until a target has restored a guest with so many
// bytes of memory, or says that it could not. A source that gave up first would not know who
// has the guest.
func RestoredLimit(memoryBytes int64) time.Duration {
	return fleet.RestoreLimit(memoryBytes) + removeLimit
}

// Greet sends a hello to a target and returns the target's answer. A target that is too far
// apart is an error, unless the hello only asks.
func Greet(c *framing.Conn, h Hello) (Answer, error) {
	h.Form = form
	if err := sendJSON(c, sayHello, h); err != nil {
		return Answer{}, err
	}
	a, err := hear(c, syncLimit)
	if why := apart(h.Protocol, a.Protocol); err == nil && !h.Only && a.Failure == "" && why != "" {
		return a, errors.New(why)
	}
	return a, err
}

// Meet waits for the hello of a new connection.
func Meet(c *framing.Conn) (h Hello, err error) {
	kind, content, err := c.Receive(helloLimit)
	if err != nil {
		return h, err
	}
	if kind != sayHello {
		return h, errors.New("peer did not send a valid hello")
	}
	return h, parse(content, &h)
}

// Reply sends an answer to the source.
func Reply(c *framing.Conn, a Answer) error {
	a.Protocol = fleet.Protocol()
	return sendJSON(c, sayAnswer, a)
}

// apart says why source and target do not work together; empty: they do.
func apart(source, target int) string {
	return fleet.Apart(fleet.Speaker{Name: "the source's agent", Protocol: source}, fleet.Speaker{Name: "the target's agent", Protocol: target})
}

// hear waits for the target's answer.
func hear(c *framing.Conn, patience time.Duration) (a Answer, err error) {
	kind, content, err := c.Receive(patience)
	if err != nil {
		return a, err
	}
	if kind != sayAnswer {
		return a, fmt.Errorf("the target sent a message of the unknown kind %q", kind)
	}
	return a, parse(content, &a)
}

func sendJSON(c *framing.Conn, kind byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := c.Send(kind, text); err != nil {
		return err
	}
	return c.Flush()
}

func parse(content []byte, v any) error {
	if err := json.Unmarshal(content, v); err != nil {
		return fmt.Errorf("read the other host's message: %w", err)
	}
	return nil
}

// imageName refuses a name that is not that of a CRIU image.
func imageName(name string) error {
	const most = 100
	if name == "" || name[0] == '.' || len(name) > most {
		return fmt.Errorf("%q is not the name of an image", name)
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.') {
			return fmt.Errorf("%q is not the name of an image", name)
		}
	}
	return nil
}

// pieceBytes is the length, in bytes, of a piece's description before its content.
const pieceBytes = 4 + 1 + 8 + 8

func pieceHead(p memory.Piece) []byte {
	head := binary.BigEndian.AppendUint32(nil, p.Process)
	head = append(head, byte(p.What))
	head = binary.BigEndian.AppendUint64(head, p.Address)
	return binary.BigEndian.AppendUint64(head, p.Bytes)
}

// parsePiece parses a message with a piece. The store checks whether the piece makes
// sense.
func parsePiece(m []byte) (p memory.Piece, content []byte, err error) {
	if len(m) < pieceBytes {
		return p, nil, errors.New("a message about memory ends early")
	}
	p.Process, p.What = binary.BigEndian.Uint32(m), memory.What(m[4])
	p.Address, p.Bytes = binary.BigEndian.Uint64(m[5:]), binary.BigEndian.Uint64(m[13:])
	return p, m[pieceBytes:], nil
}
