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

// The kinds of message between source and target. What is not said otherwise
// goes from the source to the target, which answers nothing until it is asked.
const (
	sayHello   = 'H' // the first; answered by an answer
	sayAnswer  = 'A' // from the target
	sayAgent   = 'G' // the guest agent, if the target lacks it; an empty one ends it
	sayTree    = 'T' // of package tree
	sayPiece   = 'P' // of package pages: what it is, and the memory it holds
	sayImage   = 'I' // begins a file of CRIU's: its name
	sayContent = 'C' // of that file
	saySync    = 'S' // answered by an answer when all before has been taken and the target is ready for more
	sayRestore = 'R' // make the guest of what has come; answered by an answer
)

// Hello is what a source says first.
type Hello struct {
	Version    int               `json:"version"`
	Guest      fleet.GuestID     `json:"guest"`
	Migration  fleet.MigrationID `json:"migration"`
	Gen        uint64            `json:"gen"`
	Word       string            `json:"word"`
	Agent      string            `json:"agent,omitempty"`       // digest of the guest agent that it runs; empty: it has that among its files
	Only       bool              `json:"only_asks,omitempty"`   // nothing follows
	PageServer bool              `json:"page_server,omitempty"` // what is owed of the guest can be fetched by this connection, as package debt does
}

// Answer is what a target says.
type Answer struct {
	Arrived bool   `json:"arrived,omitempty"` // it has the guest whole
	Failure string `json:"failure,omitempty"` // it has not, and never will, by this migration
	Lacks   bool   `json:"lacks,omitempty"`   // it lacks the guest agent, which has to come before all else
}

// The limits of waiting: for somebody who connects to say who he is, for a target
// to take what it has been sent, and to make a guest of it.
const (
	helloLimit   = 10 * time.Second
	syncLimit    = 30 * time.Second
	restoreLimit = time.Minute
)

// Greet says hello to a target and gives what it says of itself.
func Greet(c *framing.Conn, h Hello) (Answer, error) {
	if err := sendJSON(c, sayHello, h); err != nil {
		return Answer{}, err
	}
	return hear(c, syncLimit)
}

// Meet waits for who has connected to say hello.
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

// Reply gives a source its answer.
func Reply(c *framing.Conn, a Answer) error { return sendJSON(c, sayAnswer, a) }

// hear waits for the target's answer.
func hear(c *framing.Conn, patience time.Duration) (a Answer, err error) {
	kind, content, err := c.Receive(patience)
	if err != nil {
		return a, err
	}
	if kind != sayAnswer {
		return a, fmt.Errorf("the target says something of the unknown kind %q", kind)
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
		return fmt.Errorf("read what the other host says: %w", err)
	}
	return nil
}

// imageName refuses what is not the name of a file of CRIU's.
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

// pieceBytes is what tells of a piece before what it holds.
const pieceBytes = 4 + 1 + 8 + 8

func pieceHead(p memory.Piece) []byte {
	head := binary.BigEndian.AppendUint32(nil, p.Process)
	head = append(head, byte(p.What))
	head = binary.BigEndian.AppendUint64(head, p.Address)
	return binary.BigEndian.AppendUint64(head, p.Bytes)
}

// parsePiece takes a message of a piece apart; that it makes sense is for the
// store to see.
func parsePiece(m []byte) (p memory.Piece, content []byte, err error) {
	if len(m) < pieceBytes {
		return p, nil, errors.New("a message about memory ends early")
	}
	p.Process, p.What = binary.BigEndian.Uint32(m), memory.What(m[4])
	p.Address, p.Bytes = binary.BigEndian.Uint64(m[5:]), binary.BigEndian.Uint64(m[13:])
	return p, m[pieceBytes:], nil
}
