package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
)

// This file is what is said of a checkpoint that a user keeps a copy of, outside the vaults.

// Written is how much output a job had at a checkpoint, by stream.
type Written struct {
	Began map[string]int64 `json:"began"` // where the incarnation began
	Sizes map[string]int64 `json:"sizes"`
}

// CopyVersion is the number of the form that copies of checkpoints have. What is younger is refused.
const CopyVersion = 1

// CheckpointCopy describes a checkpoint whose parts are kept elsewhere. The cluster seals it: a guest's state has the
// names of users and what they may do, so nobody may change it and have it back.
type CheckpointCopy struct {
	Version    int        `json:"version"`
	Cluster    string     `json:"cluster"`
	UID        uint32     `json:"uid"` // whose job it is
	Checkpoint Checkpoint `json:"checkpoint"`
	Output     Written    `json:"output"`
}

// SealedCopy is a CheckpointCopy with the proof that this cluster has made it.
type SealedCopy struct {
	Text []byte `json:"text"` // the CheckpointCopy as JSON
	Seal []byte `json:"seal"`
}

// ErrForeignCopy: a description is of another version, or is not one.
var ErrForeignCopy = errors.New("it is not a copy of a checkpoint that this program knows")

// ReadCopy reads a description, which may come from anywhere. It does not test the seal.
func ReadCopy(text []byte) (CheckpointCopy, error) {
	var c CheckpointCopy
	if err := json.Unmarshal(text, &c); err != nil {
		return CheckpointCopy{}, fmt.Errorf("%w: %w", ErrForeignCopy, err)
	}
	switch is := c.Checkpoint; {
	case c.Version != CopyVersion:
		return CheckpointCopy{}, fmt.Errorf("%w: it has version %d, and this program reads %d", ErrForeignCopy, c.Version, CopyVersion)
	case is.ID.Check() != nil || len(is.Guests) == 0:
		return CheckpointCopy{}, fmt.Errorf("%w: it names no checkpoint", ErrForeignCopy)
	}
	for _, p := range c.Checkpoint.Guests {
		if wrong := (&KeptState{Manifest: p.Manifest, Bytes: p.Bytes, NewBytes: p.NewBytes, Stop: p.Stop}).Refused(); wrong != "" {
			return CheckpointCopy{}, fmt.Errorf("%w: the part of guest %.64q %s", ErrForeignCopy, string(p.Guest), wrong)
		}
	}
	return c, nil
}

// PartCall asks the host of a vault about a guest's part of a checkpoint, for a copy that a user makes or gives back.
type PartCall struct {
	Part      PartName `json:"part"`
	Verb      PartVerb `json:"verb"`
	Digest    Digest   `json:"digest,omitempty"`     // of a chunk; of PutManifest: what it has to be
	MostBytes int64    `json:"most_bytes,omitempty"` // of what is put
}

// PartVerb is what a PartCall asks for.
type PartVerb string

// The verbs. What is put, and what is asked for, passes beside the call.
const (
	GetManifest PartVerb = "get-manifest"
	GetChunk    PartVerb = "get-chunk"
	FindMissing PartVerb = "missing" // names of chunks as JSON → those that are to be put
	PutChunk    PartVerb = "put-chunk"
	PutManifest PartVerb = "put-manifest"
)

// Puts reports whether something is put by the verb, or comes with it.
func (v PartVerb) Puts() bool { return v == FindMissing || v == PutChunk || v == PutManifest }

// Most is how many bytes pass with a call at most; 0: there is no such verb.
func (v PartVerb) Most() int64 {
	switch v {
	case GetManifest, PutManifest:
		return 256 << 20
	case GetChunk, PutChunk:
		return 2 << 20
	case FindMissing:
		return 1 << 20
	}
	return 0
}
