package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"pagurus/fleet"
)

// This file answers the controller about parts of checkpoints in this host's vault: for copies that users make, and
// for those that they give back. Who may have what the controller has decided.

// partLimit is the controller's for a piece.
const partLimit = 2 * time.Minute

// part answers one call. What is put or asked for passes by calls to the controller of its own.
func (a *Agent) part(ctx context.Context, q fleet.PartCall, id string) error {
	if a.Vaults.Own == nil {
		return errNoVault
	}
	own := a.Vaults.Own.Own(q.MostBytes)
	if own == nil {
		return fmt.Errorf("host %s keeps no checkpoints", a.Host)
	}
	var in, out []byte
	var err error
	if q.Verb.Puts() {
		if in, err = a.Controller.Handed(ctx, id); err != nil {
			return fmt.Errorf("host %s could not get a piece from the controller: %w", a.Host, err)
		}
	}
	switch q.Verb {
	case fleet.GetManifest:
		out, err = own.Manifest(ctx, q.Part)
	case fleet.GetChunk:
		out, err = own.Chunk(ctx, q.Part, q.Digest)
	case fleet.FindMissing:
		var names, missing []fleet.Digest
		if err = json.Unmarshal(in, &names); err == nil {
			missing, err = own.Missing(ctx, q.Part, names)
		}
		if err == nil {
			out, err = json.Marshal(missing)
		}
	case fleet.PutChunk:
		err = own.PutChunk(ctx, q.Part, q.Digest, in)
	case fleet.PutManifest:
		if err = a.Vaults.Own.Back(q.Digest, q.MostBytes).PutManifest(ctx, q.Part, in); err == nil {
			a.noteKept(q.Part.Checkpoint)
		}
	default:
		err = errors.New("it does not know this question, so it is older than the controller: upgrade the agent")
	}
	if err != nil {
		return fmt.Errorf("host %s: %w", a.Host, err)
	}
	if q.Verb == fleet.PutChunk || q.Verb == fleet.PutManifest {
		return nil
	}
	if err := a.Controller.Hand(ctx, id, out); err != nil {
		return fmt.Errorf("host %s could not hand over a piece: %w", a.Host, err)
	}
	return nil
}
