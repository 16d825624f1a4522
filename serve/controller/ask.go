package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/decide/access"
	"pagurus/decide/planner"
	"pagurus/decide/quota"
	"pagurus/fleet"
	"pagurus/serve/wire"
)

const leadLimit = 10 * time.Second // how long callers wait for the controller to lead

// Ask answers a request once its effect is stored.
func (c *Controller) Ask(ctx context.Context, q fleet.Request) (fleet.Answer, error) {
	if err := c.leads(ctx); err != nil {
		return fleet.Answer{}, err
	}
	q.Traffic = nil // the controller observes it
	if err := c.changes.admit(q.By, quota.Change(q), time.Now()); err != nil {
		return fleet.Answer{}, err
	}
	if q.Verb == fleet.Submit && q.Spec != nil {
		image, err := c.image(ctx, q.Spec.Image)
		if err != nil {
			return fleet.Answer{}, err
		}
		q.Image = &image
	}
	if q.Verb == fleet.TakeCheckpoint {
		of, err := c.unsealed(q.Copy)
		if err != nil {
			return fleet.Answer{}, err
		}
		q.Taken, q.Copy = of, nil
	}
	token, err := c.namedToken(&q)
	if err != nil {
		return fleet.Answer{}, err
	}
	var answer fleet.Answer
	var failure error
	err = c.do(ctx, forUser(q.By), func(ctx context.Context) {
		q.At = now()
		answer, failure = c.step(ctx, q)
		c.noteStoreError(failure)
	})
	if err != nil {
		return fleet.Answer{}, unasked(err)
	}
	if failure == nil && q.Verb == fleet.SendSignal {
		failure = c.signal(ctx, q)
	}
	if failure == nil {
		answer.Token, failure = c.madeToken(q, token)
	}
	return answer, answerable(failure)
}

// answerable gives an error its HTTP status.
func answerable(err error) error {
	refusal, failure := (*planner.Refusal)(nil), (*storeError)(nil)
	switch {
	case errors.As(err, &refusal):
		return &wire.Error{Status: http.StatusUnprocessableEntity, Reason: refusal.Error()}
	case errors.As(err, &failure):
		return &wire.Error{Status: http.StatusInsufficientStorage, Reason: failure.Error()}
	}
	return err
}

// These bound the wait for an image of another controller. Who asks for a name waits a little longer; an agent asks again for a file.
const (
	seekLimit  = 20 * time.Second
	fetchLimit = 10 * time.Minute
)

// seek fetches an image from another controller, of a digest or of a name. After a failure it is not here.
func (c *Controller) seek(ctx context.Context, name string, d fleet.Digest) bool {
	if c.SeekImage == nil {
		return false
	}
	limit := fetchLimit
	if name != "" {
		limit = seekLimit
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	err := c.SeekImage(ctx, name, d)
	if err != nil {
		c.Log.Debug("an image is not at another controller", "image", name, "digest", d, "cause", err)
	}
	return err == nil
}

// image finds an image by the name in a job.
func (c *Controller) image(ctx context.Context, name string) (fleet.Image, error) {
	image, err := c.Images.Find(name)
	if err != nil && c.seek(ctx, name, "") { // it was built beside another controller just now
		image, err = c.Images.Find(name)
	}
	if err == nil {
		return image, nil
	}
	all, lerr := c.Images.List()
	if lerr != nil {
		return image, errors.Join(err, lerr)
	}
	var names []string
	for _, i := range all {
		if i.Name == name {
			return image, err // it exists, so the error has another cause
		}
		names = append(names, i.Name)
	}
	there := "there are none yet"
	if len(names) > 0 {
		slices.Sort(names)
		there = "there are " + strings.Join(names, ", ")
	}
	return image, &wire.Error{Status: http.StatusUnprocessableEntity, Reason: fmt.Sprintf("there is no image %q (%s): build it with `pagurus image build NAME`", name, there)}
}

var notLeading = &wire.Error{Status: wire.NotLeading, Reason: "this controller does not lead: it is still starting, or ending, or another one leads; try again"}

// leads waits for some time until the controller leads.
func (c *Controller) leads(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leadLimit)
	defer cancel()
	select {
	case <-c.ready:
		return nil
	case <-c.over:
	case <-ctx.Done():
	}
	return notLeading
}

// Snapshot is the last published cluster state.
func (c *Controller) Snapshot(ctx context.Context) (fleet.Snapshot, error) {
	if err := c.leads(ctx); err != nil {
		return fleet.Snapshot{}, err
	}
	return *c.current.Load(), nil // one is published before it leads
}

// publish makes the present state visible to readers and watchers.
func (c *Controller) publish() {
	s := c.whole()
	c.current.Store(&s)
	c.told, c.changed = s.At, false
	c.watching.Lock()
	defer c.watching.Unlock()
	for ch := range c.watching.by {
		select {
		case <-ch: // the earlier one is old now
		default:
		}
		ch <- s
	}
}

// Watch gives the cluster state now and after every change, starting when the controller
// leads.
func (c *Controller) Watch(ctx context.Context) <-chan fleet.Snapshot {
	// Only publish and this function send, both locked, and publish makes room first.
	ch := make(chan fleet.Snapshot, 1)
	c.watching.Lock()
	c.watching.by[ch] = true
	if s := c.current.Load(); s != nil {
		ch <- *s
	}
	c.watching.Unlock()
	context.AfterFunc(ctx, func() {
		c.watching.Lock()
		defer c.watching.Unlock()
		delete(c.watching.by, ch)
		close(ch)
	})
	return ch
}

// Explain says why something is as it is.
func (c *Controller) Explain(ctx context.Context, about wire.About) ([]string, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	lines, err := c.Planner.Explain(access.Visible(s, about.By), planner.Subject{Guest: about.Guest, Job: about.Job, Host: about.Host})
	return lines, answerable(err)
}

// ImageFile gives the path of a file of an image. One that a job needs and that this controller never had is fetched from another.
func (c *Controller) ImageFile(d fleet.Digest, file string) (string, error) {
	folder := c.Images.Folder(d)
	s := c.current.Load()
	if _, err := os.Stat(folder); err != nil && c.SeekImage != nil && s != nil {
		for _, j := range s.Jobs {
			if j.Digest == d && j.State != fleet.JobEnded {
				c.seek(context.Background(), "", d)
				break
			}
		}
	}
	return filepath.Join(folder, file), nil
}

// owned gives a job if the caller may access it.
func (c *Controller) owned(ctx context.Context, by fleet.Caller, id fleet.JobID) (fleet.Job, error) {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return fleet.Job{}, err
	}
	j, ok := s.Jobs[id]
	if !ok {
		return j, &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("there is no job %s: `pagurus job ls` lists them", id)}
	}
	if !by.Admin && by.UID != j.Spec.UID {
		return j, &wire.Error{Status: http.StatusForbidden, Reason: fmt.Sprintf("job %s is not yours", id)}
	}
	return j, nil
}

// query sends a query to the agent of a guest's host, and waits for the answer until ctx
// ends.
func (c *Controller) query(ctx context.Context, g fleet.Guest, q wire.Query) (wire.Reply, error) {
	r, err := c.queryHost(ctx, g.Home, q)
	if err != nil {
		return r, fmt.Errorf("guest %s: %w", g.ID, err)
	}
	return r, nil
}

// question is a query that an agent has not answered yet.
type question struct {
	to     fleet.HostID
	answer chan wire.Reply
}

// answered passes a reply to the caller that still waits for it. Only the host that was
// asked can answer.
func (c *Controller) answered(by fleet.HostID, r wire.Reply) {
	c.asking.Lock()
	defer c.asking.Unlock()
	if q, waits := c.asking.replies[r.ID]; waits && q.to == by {
		delete(c.asking.replies, r.ID)
		q.answer <- r
	}
}
