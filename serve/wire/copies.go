// This file passes copies of checkpoints: a user gets one, or gives one back, and the controller has the agents of
// the vaults' hosts hand over or take its pieces. Agents dial for them, as for everything.

package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"pagurus/fleet"
)

// Copies are checkpoints on their way between vaults and users.
type Copies interface {
	// Copy describes a kept checkpoint of the caller's, with a seal.
	Copy(context.Context, fleet.Caller, fleet.CheckpointID) (fleet.SealedCopy, error)
	// Part has the host of a vault answer a call about a part of a checkpoint of the caller's. body is what is put.
	Part(ctx context.Context, by fleet.Caller, call fleet.PartCall, body func() ([]byte, error)) ([]byte, error)
	// Handed gives an agent what a call has put.
	Handed(ctx context.Context, by fleet.Caller, id string) ([]byte, error)
	// Hand takes from an agent what a call asks for.
	Hand(ctx context.Context, by fleet.Caller, id string, body func(most int64) ([]byte, error)) error
	// Unknown says which of some checkpoints, which a host's vault has, the cluster does not know.
	Unknown(context.Context, []fleet.CheckpointID) (fleet.VaultAnswer, error)
}

var errNoCopies = &Error{http.StatusNotImplemented, "this controller makes no copies of checkpoints"}

func (s *server) routeCopies(add func(string, func(Copies, Peer, http.ResponseWriter, *http.Request) error)) {
	add("GET /v1/checkpoints/{checkpoint}/copy", func(all Copies, id Peer, w http.ResponseWriter, r *http.Request) error {
		c, err := all.Copy(r.Context(), id.Caller, fleet.CheckpointID(r.PathValue("checkpoint")))
		if err != nil {
			return err
		}
		return reply(w, c)
	})
	add("POST /v1/checkpoints/{checkpoint}/{guest}/{verb}", func(all Copies, id Peer, w http.ResponseWriter, r *http.Request) error {
		call := fleet.PartCall{
			Part: fleet.PartName{Checkpoint: fleet.CheckpointID(r.PathValue("checkpoint")), Guest: fleet.GuestID(r.PathValue("guest"))},
			Verb: fleet.PartVerb(r.PathValue("verb")), Digest: fleet.Digest(r.URL.Query().Get("digest")),
		}
		most := call.Verb.Most()
		if most == 0 || call.Digest != "" && !digestForm.MatchString(string(call.Digest)) {
			return &Error{http.StatusBadRequest, "that is not a question about a part of a checkpoint" + s.tooOld(r)}
		}
		if !call.Verb.Puts() {
			most = 0
		}
		answer, err := all.Part(r.Context(), id.Caller, call, func() ([]byte, error) { return body(w, r, most) })
		if err != nil {
			return err
		}
		return sendBytes(w, answer)
	})
	add("GET /v1/handed/{id}", func(all Copies, id Peer, w http.ResponseWriter, r *http.Request) error {
		data, err := all.Handed(r.Context(), id.Caller, r.PathValue("id"))
		if err != nil {
			return err
		}
		return sendBytes(w, data)
	})
	add("POST /v1/handed/{id}", func(all Copies, id Peer, w http.ResponseWriter, r *http.Request) error {
		err := all.Hand(r.Context(), id.Caller, r.PathValue("id"), func(most int64) ([]byte, error) { return body(w, r, most) })
		if err != nil {
			return err
		}
		return sendBytes(w, nil)
	})
	add("POST /v1/vault/unknown", func(all Copies, _ Peer, w http.ResponseWriter, r *http.Request) error {
		text, err := body(w, r, askBytes)
		if err != nil {
			return err
		}
		var ids []fleet.CheckpointID
		if err := json.Unmarshal(text, &ids); err != nil {
			return &Error{http.StatusBadRequest, "the list of checkpoints cannot be read"}
		}
		answer, err := all.Unknown(r.Context(), ids)
		if err != nil {
			return err
		}
		return reply(w, answer)
	})
}

func sendBytes(w http.ResponseWriter, data []byte) error {
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(data) // who does not get it asks again
	return nil
}

// Copy describes a kept checkpoint, with a seal.
func (c *Client) Copy(ctx context.Context, id fleet.CheckpointID) (fleet.SealedCopy, error) {
	var out fleet.SealedCopy
	err := c.call(ctx, http.MethodGet, "/v1/checkpoints/"+url.PathEscape(string(id))+"/copy", nil, &out)
	return out, err
}

// CallPart asks the host of a vault about a part of a checkpoint. To ask again is safe.
func (c *Client) CallPart(ctx context.Context, q fleet.PartCall, put []byte) ([]byte, error) {
	path := fmt.Sprintf("/v1/checkpoints/%s/%s/%s", url.PathEscape(string(q.Part.Checkpoint)), url.PathEscape(string(q.Part.Guest)), url.PathEscape(string(q.Verb)))
	if q.Digest != "" {
		path += "?digest=" + url.QueryEscape(string(q.Digest))
	}
	return c.bytes(ctx, http.MethodPost, path, put, q.Verb.Most())
}

// Handed gets what a question of the controller comes with.
func (c *Client) Handed(ctx context.Context, id string) ([]byte, error) {
	return c.bytes(ctx, http.MethodGet, "/v1/handed/"+url.PathEscape(id), nil, fleet.PutManifest.Most())
}

// Hand gives the controller what it asks for.
func (c *Client) Hand(ctx context.Context, id string, data []byte) error {
	_, err := c.bytes(ctx, http.MethodPost, "/v1/handed/"+url.PathEscape(id), data, 0)
	return err
}

// Unknown says which checkpoints, which a vault has, the cluster does not know.
func (c *Client) Unknown(ctx context.Context, ids []fleet.CheckpointID) (fleet.VaultAnswer, error) {
	var out fleet.VaultAnswer
	text, err := json.Marshal(ids)
	if err == nil {
		err = c.call(ctx, http.MethodPost, "/v1/vault/unknown", text, &out)
	}
	return out, err
}

func (c *Client) bytes(ctx context.Context, method, path string, put []byte, most int64) ([]byte, error) {
	r, err := c.send(ctx, method, path, put)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, c.explained(err)
	}
	if int64(len(got)) > most {
		return nil, fmt.Errorf("the controller answers with more than %d bytes", most)
	}
	return got, nil
}
