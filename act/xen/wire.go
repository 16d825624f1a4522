package xen

import (
	"encoding/binary"
	"fmt"
	"io"
)

// What the wardens of a source and a target say to each other. Each message is its kind in a byte, a length in four, and content.
const (
	wireStream = 'D' // to the target: of the stream
	wirePing   = 'P' // to the target: are you there?
	wireGive   = 'C' // to the target: the guest is yours. The source never runs it again
	wirePong   = 'p' // from the target: I am
	wireReady  = 'R' // from the target: all of it is here
	wireTaken  = 'c' // from the target: it is mine
	wireError  = 'E' // from the target: why it failed
)

// mostContent is the most of a message.
const mostContent = 256 << 10

func sendWire(to io.Writer, kind byte, content []byte) error {
	head := append(make([]byte, 0, 5+len(content)), kind)
	head = binary.BigEndian.AppendUint32(head, uint32(len(content)))
	_, err := to.Write(append(head, content...))
	return err
}

func readWire(from io.Reader, buffer []byte) (kind byte, content []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > uint32(len(buffer)) {
		return 0, nil, fmt.Errorf("a message of %d bytes came, and %d are the most", n, len(buffer))
	}
	_, err = io.ReadFull(from, buffer[:n])
	return head[0], buffer[:n], err
}
