package guestlink

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// A frame is
//
//	RS "pgl1" LENGTH(8 hex) CRC32(8 hex) payload
//
// RS is the byte 0x1e. The payload is JSON, which has no raw control bytes, so RS only
// starts frames: a truncated frame ends where the next one starts, whatever its length
// field. With binary lengths alone, a reader would swallow up to 64 KiB of good frames
// before noticing.
const (
	recordStart = 0x1e
	magic       = "\x1epgl1"
	headerBytes = len(magic) + 8 + 8

	// maxPayload limits a side's buffer.
	maxPayload = 64 << 10
)

// encode makes a frame of v.
func encode(v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding a message of the guest link: %w", err)
	}
	if len(payload) > maxPayload {
		return nil, fmt.Errorf("message of %d bytes is too long for the guest link, which takes %d; shorten the arguments and the environment", len(payload), maxPayload)
	}
	frame := make([]byte, 0, headerBytes+len(payload))
	frame = fmt.Appendf(frame, "%s%08x%08x", magic, len(payload), crc32.ChecksumIEEE(payload))
	return append(frame, payload...), nil
}

// decoder finds frames in a stream that may begin, end and break anywhere. It never
// fails: it skips everything that is not a complete, valid frame.
type decoder struct {
	pending []byte // empty, or begins with its only recordStart
}

// feed processes the next bytes of the stream and calls emit with the payload of each
// completed frame. The payload is valid only during the call.
func (d *decoder) feed(b []byte, emit func(payload []byte)) {
	for len(b) > 0 {
		if b[0] == recordStart {
			d.pending = append(d.pending[:0], recordStart)
			b = b[1:]
		}
		segment := b
		if i := bytes.IndexByte(b, recordStart); i >= 0 {
			segment = b[:i]
		}
		b = b[len(segment):]
		if len(d.pending) > 0 {
			d.extend(segment, emit)
		}
	}
}

// extend adds bytes without recordStart to the present frame.
func (d *decoder) extend(segment []byte, emit func([]byte)) {
	if room := headerBytes + maxPayload - len(d.pending); len(segment) > room {
		segment = segment[:room] // a valid frame is complete by then; the rest is garbage
	}
	d.pending = append(d.pending, segment...)
	if len(d.pending) < headerBytes {
		return
	}
	length, sum, ok := header(d.pending)
	if !ok {
		d.pending = d.pending[:0]
		return
	}
	if len(d.pending) < headerBytes+length {
		return
	}
	payload := d.pending[headerBytes : headerBytes+length]
	if crc32.ChecksumIEEE(payload) == sum {
		emit(payload)
	}
	d.pending = d.pending[:0]
	if cap(d.pending) > 16<<10 {
		d.pending = nil // a guest's memory belongs to its job; large frames are rare
	}
}

// header parses a frame's length and checksum; frame has at least headerBytes.
func header(frame []byte) (length int, sum uint32, ok bool) {
	if string(frame[:len(magic)]) != magic {
		return 0, 0, false
	}
	var raw [8]byte
	if _, err := hex.Decode(raw[:], frame[len(magic):headerBytes]); err != nil {
		return 0, 0, false
	}
	n := uint32(raw[0])<<24 | uint32(raw[1])<<16 | uint32(raw[2])<<8 | uint32(raw[3])
	sum = uint32(raw[4])<<24 | uint32(raw[5])<<16 | uint32(raw[6])<<8 | uint32(raw[7])
	if n > maxPayload {
		return 0, 0, false
	}
	return int(n), sum, true
}
