package vault

import (
	"context"
	"encoding/json"
	"fmt"

	"pagurus/fleet"
)

// Over are the chunks that are reached by calls, which somebody passes to the vaults of a cluster.
func Over(call func(context.Context, fleet.PartCall, []byte) ([]byte, error)) Chunks {
	return over{call}
}

type over struct {
	call func(context.Context, fleet.PartCall, []byte) ([]byte, error)
}

// Missing satisfies Chunks.
func (o over) Missing(ctx context.Context, p Part, of []fleet.Digest) (missing []fleet.Digest, err error) {
	names, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	answer, err := o.call(ctx, fleet.PartCall{Part: p, Verb: fleet.FindMissing}, names)
	if err == nil {
		if err = json.Unmarshal(answer, &missing); err != nil {
			err = fmt.Errorf("read which chunks are missing: %w", err)
		}
	}
	return missing, err
}

// PutChunk satisfies Chunks.
func (o over) PutChunk(ctx context.Context, p Part, d fleet.Digest, packed []byte) error {
	_, err := o.call(ctx, fleet.PartCall{Part: p, Verb: fleet.PutChunk, Digest: d}, packed)
	return err
}

// PutManifest satisfies Chunks.
func (o over) PutManifest(ctx context.Context, p Part, text []byte) error {
	_, err := o.call(ctx, fleet.PartCall{Part: p, Verb: fleet.PutManifest}, text)
	return err
}

// Manifest satisfies Chunks.
func (o over) Manifest(ctx context.Context, p Part) ([]byte, error) {
	return o.call(ctx, fleet.PartCall{Part: p, Verb: fleet.GetManifest}, nil)
}

// Chunk satisfies Chunks.
func (o over) Chunk(ctx context.Context, p Part, d fleet.Digest) ([]byte, error) {
	return o.call(ctx, fleet.PartCall{Part: p, Verb: fleet.GetChunk, Digest: d}, nil)
}
