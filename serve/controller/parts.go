package controller

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pagurus/fleet"
	"pagurus/serve/wire"
)

// This file passes parts of checkpoints between users and vaults: for a copy that a user makes, or gives back. What is
// passed is not kept here. A user asks, the agent of the vault's host is asked by its session, and gets or hands over
// the bytes by a call of its own, since a session has orders that may not wait.

const (
	partLimit  = 2 * time.Minute // for one piece, also a manifest of a large guest
	partsEach  = 8               // pieces of one user at once
	partsAll   = 32
	partsWait  = 20 * time.Second // for others of the same user
	partsRetry = 20 * time.Millisecond
)

// parts are the pieces that pass now.
type parts struct {
	mu    sync.Mutex
	hands map[string]*hand
	by    map[uint32]int // how many, by user
	one   chan struct{}  // a manifest passes: they are large
}

// hand is a piece that passes.
type hand struct {
	host    fleet.HostID
	call    fleet.PartCall
	in, out []byte
}

// Copy describes a kept checkpoint of a user's, and seals that.
func (c *Controller) Copy(ctx context.Context, by fleet.Caller, id fleet.CheckpointID) (fleet.SealedCopy, error) {
	none := fleet.SealedCopy{}
	if c.Authority == nil {
		return none, &wire.Error{Status: http.StatusConflict, Reason: "this controller has no authority that could seal a copy: let it listen for other machines"}
	}
	j, is, err := c.checkpointOf(ctx, by, id)
	if err != nil {
		return none, err
	}
	if is.Phase != fleet.Kept {
		return none, &wire.Error{Status: http.StatusConflict, Reason: fmt.Sprintf("checkpoint %s is %s, and only what is kept can be copied; `pagurus checkpoint ls` lists checkpoints", id, is.Phase)}
	}
	out := fleet.CheckpointCopy{Version: fleet.CopyVersion, Cluster: c.current.Load().Cluster.ID, UID: j.Spec.UID, Checkpoint: is}
	if out.Output, err = c.spool.writtenAt(id, j.ID); err != nil {
		return none, err
	}
	text, err := json.Marshal(out)
	if err != nil {
		return none, fmt.Errorf("describing %s: %w", id, err)
	}
	seal, err := c.Authority.Seal(text)
	return fleet.SealedCopy{Text: text, Seal: seal}, err
}

// writtenAt is how much output a job had at a checkpoint.
func (s *spool) writtenAt(id fleet.CheckpointID, job fleet.JobID) (at fleet.Written, err error) {
	text, err := os.ReadFile(filepath.Join(s.dir, string(job), cutLengths(id)))
	if err == nil {
		err = json.Unmarshal(text, &at)
	}
	if err != nil {
		return at, fmt.Errorf("reading how much output %s had at %s: %w", job, id, err)
	}
	return at, nil
}

// checkpointOf is a checkpoint whose job a caller may access.
func (c *Controller) checkpointOf(ctx context.Context, by fleet.Caller, id fleet.CheckpointID) (fleet.Job, fleet.Checkpoint, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.Job{}, fleet.Checkpoint{}, err
	}
	is, known := s.Checkpoints[id]
	if !known {
		return fleet.Job{}, is, &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("there is no checkpoint %.70s: `pagurus checkpoint ls` lists them", id)}
	}
	j, err := c.owned(ctx, by, is.Job)
	return j, is, err
}

// unsealed is what a copy says that is given back, if this cluster made it, and the job's output can go on there.
func (c *Controller) unsealed(s *fleet.SealedCopy) (*fleet.CheckpointCopy, error) {
	refused := func(format string, args ...any) (*fleet.CheckpointCopy, error) {
		return nil, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case s == nil:
		return refused("the request has no copy of a checkpoint")
	case c.Authority == nil:
		return refused("this controller has no authority that could have sealed a copy: let it listen for other machines")
	}
	if err := c.Authority.Unseal(s.Text, s.Seal); err != nil {
		return refused("the description of the copy is not one of this cluster: %v; only the cluster that made a copy takes it back", err)
	}
	out, err := fleet.ReadCopy(s.Text)
	if err != nil {
		return refused("the description of the copy cannot be used: %v", err)
	}
	id, at := out.Checkpoint.ID, out.Output
	for _, name := range []string{fleet.Stdout, fleet.Stderr} {
		switch size, err := c.spool.stored(out.Checkpoint.Job, name); {
		case err != nil:
			return nil, err
		case size < at.Sizes[name]:
			return refused("job %s has %d bytes of %s left, and at %s it had %d, so it cannot go on there", out.Checkpoint.Job, size, name, id, at.Sizes[name])
		}
	}
	return &out, nil
}

// stored is how much there is of a job's stream.
func (s *spool) stored(job fleet.JobID, name string) (int64, error) {
	if !jobForm.MatchString(string(job)) {
		return 0, fmt.Errorf("%.70q is not the name of a job", string(job))
	}
	st, err := s.stream(job, name)
	if err != nil {
		return 0, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	err = st.findStored()
	return st.size, err
}

// Part has the host of a vault answer a call about a part of a user's checkpoint.
func (c *Controller) Part(ctx context.Context, by fleet.Caller, call fleet.PartCall, body func() ([]byte, error)) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partLimit)
	defer cancel()
	j, is, err := c.checkpointOf(ctx, by, call.Part.Checkpoint)
	if err != nil {
		return nil, err
	}
	needs := fleet.Kept
	if call.Verb.Puts() {
		needs = fleet.Taking
	}
	i := slices.IndexFunc(is.Guests, func(p fleet.CheckpointPart) bool { return p.Guest == call.Part.Guest })
	switch {
	case i < 0:
		return nil, &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("checkpoint %s has no guest %.70s", is.ID, call.Part.Guest)}
	case is.Phase != needs:
		return nil, &wire.Error{Status: http.StatusConflict, Reason: fmt.Sprintf("checkpoint %s is %s now: begin again", is.ID, is.Phase)}
	}
	p := is.Guests[i]
	if call.Verb == fleet.PutManifest || call.Verb == fleet.GetManifest {
		call.Digest = p.Manifest
	}
	call.MostBytes = max(fleet.MostKept(j.Spec.Need), p.Bytes)
	leave, err := c.parts.enter(ctx, by.UID, call.Verb)
	if err != nil {
		return nil, err
	}
	defer leave()
	h := &hand{host: p.Vault, call: call}
	if h.in, err = body(); err != nil {
		return nil, err
	}
	if err := c.handOver(ctx, h); err != nil {
		return nil, &wire.Error{Status: http.StatusBadGateway, Reason: fmt.Sprintf("%s of %s: %v", call.Part.Guest, is.ID, err)}
	}
	if call.Verb == fleet.PutManifest {
		return nil, c.given(ctx, call.Part)
	}
	return h.out, nil
}

// handOver asks the agent, and waits until it has taken or handed everything.
func (c *Controller) handOver(ctx context.Context, h *hand) error {
	id := rand.Text()
	c.parts.mu.Lock()
	c.parts.hands[id] = h
	c.parts.mu.Unlock()
	defer func() {
		c.parts.mu.Lock()
		defer c.parts.mu.Unlock()
		delete(c.parts.hands, id)
	}()
	_, err := c.queryHost(ctx, h.host, wire.Query{Part: &h.call, Handed: id})
	return err
}

// given notes that a part has come back to its vault.
func (c *Controller) given(ctx context.Context, p fleet.PartName) error {
	var failure error
	err := c.do(ctx, forAsked, func(ctx context.Context) {
		_, failure = c.step(ctx, fleet.Observation{At: now(), Given: p})
		c.noteStoreError(failure)
	})
	if err != nil {
		return notLeading
	}
	return answerable(failure)
}

// enter waits until one more piece of a user's may pass.
func (p *parts) enter(ctx context.Context, uid uint32, v fleet.PartVerb) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, partsWait)
	defer cancel()
	busy := &wire.Error{Status: http.StatusGatewayTimeout, Reason: "too many pieces of checkpoints pass through the controller at the moment; try again"}
	for {
		p.mu.Lock()
		all := 0
		for _, n := range p.by {
			all += n
		}
		if p.by[uid] < partsEach && all < partsAll {
			p.by[uid]++
			p.mu.Unlock()
			break
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, busy
		case <-time.After(partsRetry):
		}
	}
	large := v.Most() > fleet.GetChunk.Most()
	leave = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.by[uid]--; p.by[uid] == 0 {
			delete(p.by, uid)
		}
		if large {
			<-p.one
		}
	}
	if !large {
		return leave, nil
	}
	select {
	case p.one <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		large = false
		leave()
		return nil, busy
	}
}

var errNotHanded = &wire.Error{Status: http.StatusNotFound, Reason: "nobody waits for that piece of a checkpoint any more"}

// handed finds a piece that an agent was asked about, and no other.
func (c *Controller) handed(by fleet.Caller, id string) (*hand, error) {
	c.parts.mu.Lock()
	defer c.parts.mu.Unlock()
	h := c.parts.hands[id]
	if h == nil || by.Host != h.host && (by.Host != "" || !by.Admin) { // an agent on the socket has no name
		return nil, errNotHanded
	}
	return h, nil
}

// Handed gives an agent what a call has put.
func (c *Controller) Handed(_ context.Context, by fleet.Caller, id string) ([]byte, error) {
	h, err := c.handed(by, id)
	if err != nil {
		return nil, err
	}
	return h.in, nil
}

// Hand takes from an agent what a call asks for.
func (c *Controller) Hand(_ context.Context, by fleet.Caller, id string, body func(int64) ([]byte, error)) error {
	h, err := c.handed(by, id)
	if err != nil {
		return err
	}
	data, err := body(h.call.Verb.Most())
	if err != nil {
		return err
	}
	c.parts.mu.Lock()
	defer c.parts.mu.Unlock()
	if c.parts.hands[id] != h {
		return errNotHanded
	}
	h.out = data
	return nil
}

// queryHost sends a query to a host's agent, and waits for the answer until ctx ends.
func (c *Controller) queryHost(ctx context.Context, host fleet.HostID, q wire.Query) (wire.Reply, error) {
	c.asking.Lock()
	c.asking.last++
	replies := make(chan wire.Reply, 1)
	q.ID = c.asking.last
	c.asking.replies[q.ID] = question{host, replies}
	c.asking.Unlock()
	defer func() {
		c.asking.Lock()
		defer c.asking.Unlock()
		delete(c.asking.replies, q.ID)
	}()
	away := false
	err := c.do(ctx, forAsked, func(context.Context) {
		if away = c.hosts[host] == nil; !away {
			c.sendToHost(host, wire.Down{Query: &q})
		}
	})
	if err != nil || away {
		return wire.Reply{}, fmt.Errorf("the agent of %s is not connected", host)
	}
	select {
	case r := <-replies:
		if r.Error != "" {
			return r, errors.New(r.Error)
		}
		return r, nil
	case <-ctx.Done():
		return wire.Reply{}, fmt.Errorf("the agent of %s did not answer in time", host)
	}
}

// Unknown says which checkpoints, which a host's vault has, the cluster does not know. A store without jobs says nothing: it may be
// a new one.
func (c *Controller) Unknown(ctx context.Context, ids []fleet.CheckpointID) (fleet.VaultAnswer, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.VaultAnswer{}, err
	}
	out := fleet.VaultAnswer{Cluster: s.Cluster.ID}
	if len(s.Jobs) == 0 {
		return out, nil
	}
	if out.Incarnation = s.Cluster.ID; s.Cluster.Restored != nil {
		out.Incarnation += s.Cluster.Restored.At.UTC().Format(time.RFC3339Nano)
	}
	for _, id := range ids {
		if is, known := s.Checkpoints[id]; !known || is.Phase.Ended() {
			out.Unknown = append(out.Unknown, id)
		}
	}
	return out, nil
}
