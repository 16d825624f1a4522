package container

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"pagurus/act/container/pages"
	"pagurus/act/container/wire"
	"pagurus/fleet"
)

// The kinds of message between source and target. What is not said otherwise
// goes from the source to the target, which answers nothing until it is asked.
const (
	sayHello   = 'H' // the first; answered by an answer
	sayAnswer  = 'A' // from the target
	sayTree    = 'T' // of package tree
	sayPiece   = 'P' // of package pages: what it is, and the memory it holds
	sayImage   = 'I' // begins a file of CRIU's: its name
	sayContent = 'C' // of that file
	saySync    = 'S' // all before has been taken; answered by an answer
	sayRestore = 'R' // make the guest of what has come; answered by an answer
)

// hello is what a source says first.
type hello struct {
	Version   int               `json:"version"`
	Guest     fleet.GuestID     `json:"guest"`
	Migration fleet.MigrationID `json:"migration"`
	Gen       uint64            `json:"gen"`
	Word      string            `json:"word"`
	Only      bool              `json:"only_asks,omitempty"` // nothing follows
}

// answer is what a target says.
type answer struct {
	Arrived bool   `json:"arrived,omitempty"` // it has the guest whole
	Failure string `json:"failure,omitempty"` // it has not, and never will, by this migration
}

func sendJSON(c *wire.Conn, kind byte, v any) error {
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

func pieceHead(p pages.Piece) []byte {
	head := binary.BigEndian.AppendUint32(nil, p.Process)
	head = append(head, byte(p.What))
	head = binary.BigEndian.AppendUint64(head, p.Address)
	return binary.BigEndian.AppendUint64(head, p.Bytes)
}

// parsePiece takes a message of a piece apart; that it makes sense is for the
// store to see.
func parsePiece(m []byte) (p pages.Piece, content []byte, err error) {
	if len(m) < pieceBytes {
		return p, nil, errors.New("a message about memory ends early")
	}
	p.Process, p.What = binary.BigEndian.Uint32(m), pages.What(m[4])
	p.Address, p.Bytes = binary.BigEndian.Uint64(m[5:]), binary.BigEndian.Uint64(m[13:])
	return p, m[pieceBytes:], nil
}
