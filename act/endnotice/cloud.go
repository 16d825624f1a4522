package endnotice

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

const (
	cloudEvery = 2 * time.Second // the shortest notice is 30 s
	cloudLimit = 10 * time.Second
	cloudRetry = 10 * time.Second // after a failure
	mostAnswer = 256 << 10        // bytes
)

// provider asks one cloud.
type provider interface {
	// findNotices returns what stands. It is called again and again.
	findNotices(ctx context.Context, m *server) ([]fleet.EndNotice, error)
}

// cloud is the metadata service of a cloud as a source.
type cloud struct {
	kind   fleet.EndNoticeKind
	at     server
	asks   provider
	before map[string]fleet.EndNotice
}

func newCloud(kind fleet.EndNoticeKind, url string, asks provider) *cloud {
	return &cloud{kind: kind, at: server{url, direct(cloudLimit)}, asks: asks, before: map[string]fleet.EndNotice{}}
}

func (c *cloud) Name() string { return "the metadata service of " + string(c.kind) }

func (c *cloud) Watch(ctx context.Context, tell Tell, _ func() bool) {
	for {
		all, err := c.findNotices(ctx)
		if ctx.Err() != nil {
			return
		}
		tell(all, err)
		pause := cloudEvery
		if err != nil {
			pause = cloudRetry
		}
		if !wait(ctx, pause) {
			return
		}
	}
}

// findNotices asks once. A notice keeps the time at which it was first seen, and the end that was said or reckoned then.
func (c *cloud) findNotices(ctx context.Context) ([]fleet.EndNotice, error) {
	all, err := c.asks.findNotices(ctx, &c.at)
	if err != nil {
		return nil, err
	}
	now := map[string]fleet.EndNotice{}
	for i, n := range all {
		n.Kind = c.kind
		if was, known := c.before[n.ID]; known {
			n.Since = was.Since
			if n.Guess || n.At.IsZero() {
				n.At = was.At
			}
		}
		all[i], now[n.ID] = n, n
	}
	c.before = now
	return all, nil
}

// server is a metadata service.
type server struct {
	url    string
	client *http.Client
}

// ask asks for a path. It returns the status for every answer.
func (s *server) ask(ctx context.Context, method, path string, header map[string]string) (status int, body []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, nil)
	if err != nil {
		return 0, nil, err
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	a, err := s.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close()
	body, err = io.ReadAll(io.LimitReader(a.Body, mostAnswer))
	return a.StatusCode, body, err
}

// get asks for a path that exists.
func (s *server) get(ctx context.Context, path string, header map[string]string) ([]byte, error) {
	status, body, err := s.ask(ctx, http.MethodGet, path, header)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s%s answers %d %s", s.url, path, status, http.StatusText(status))
	}
	return body, err
}

// amazon is EC2's instance metadata service, version 2.
type amazon struct {
	token string
	got   time.Time
}

const (
	amazonToken = "/latest/api/token"
	amazonSpot  = "/latest/meta-data/spot/instance-action"
	amazonTTL   = 6 * time.Hour // the longest
)

func (a *amazon) findNotices(ctx context.Context, m *server) ([]fleet.EndNotice, error) {
	if a.token == "" || time.Since(a.got) > amazonTTL/2 {
		status, body, err := m.ask(ctx, http.MethodPut, amazonToken, map[string]string{"X-aws-ec2-metadata-token-ttl-seconds": fmt.Sprint(int(amazonTTL.Seconds()))})
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("no token: %s%s answers %d %s", m.url, amazonToken, status, http.StatusText(status))
		}
		if err != nil {
			return nil, err
		}
		a.token, a.got = strings.TrimSpace(string(body)), time.Now()
	}
	status, body, err := m.ask(ctx, http.MethodGet, amazonSpot, map[string]string{"X-aws-ec2-metadata-token": a.token})
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound: // it is not to be interrupted
		return nil, nil
	case status == http.StatusUnauthorized: // the token is over, or the instance was stopped since
		a.token = ""
		return nil, fmt.Errorf("%s%s takes the token no more", m.url, amazonSpot)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%s%s answers %d %s", m.url, amazonSpot, status, http.StatusText(status))
	}
	var said struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, fmt.Errorf("%s%s: %w", m.url, amazonSpot, err)
	}
	says := "Amazon takes the instance back"
	switch said.Action {
	case "":
		return nil, nil
	case "stop":
		says = "Amazon stops the instance"
	case "hibernate":
		says = "Amazon hibernates the instance"
	}
	now := time.Now()
	n := fleet.EndNotice{ID: said.Action + " " + said.Time.UTC().Format(time.RFC3339), Says: says, At: said.Time, Since: now}
	if said.Time.IsZero() {
		n.At = now.Add(amazonNotice)
	}
	return []fleet.EndNotice{n}, nil
}

// amazonNotice is how long before the end Amazon says so.
const amazonNotice = 2 * time.Minute

// google is Compute Engine's metadata server.
type google struct{ since time.Time }

const (
	googlePreempted   = "/computeMetadata/v1/instance/preempted"
	googleMaintenance = "/computeMetadata/v1/instance/maintenance-event"
	// Google says no time. A preempted machine has 30 s from the moment that this is said, one that is ended for maintenance a minute.
	googlePreemption = 30 * time.Second
	googleMaintained = time.Minute
)

func (g *google) findNotices(ctx context.Context, m *server) ([]fleet.EndNotice, error) {
	header := map[string]string{"Metadata-Flavor": "Google"}
	preempted, err := m.get(ctx, googlePreempted, header)
	if err != nil {
		return nil, err
	}
	event, err := m.get(ctx, googleMaintenance, header)
	if err != nil {
		return nil, err
	}
	n := fleet.EndNotice{Guess: true}
	limit := googlePreemption
	switch {
	case strings.TrimSpace(string(preempted)) == "TRUE":
		n.Says = "Google takes the machine back"
	case strings.TrimSpace(string(event)) == "TERMINATE_ON_HOST_MAINTENANCE":
		n.Says, limit = "Google ends the machine for maintenance", googleMaintained
	default: // a live migration by Google is not one
		g.since = time.Time{}
		return nil, nil
	}
	if g.since.IsZero() {
		g.since = time.Now()
	}
	n.ID, n.Since, n.At = n.Says+" "+g.since.UTC().Format(time.RFC3339), g.since, g.since.Add(limit)
	return []fleet.EndNotice{n}, nil
}

// azure is Azure's instance metadata service with its scheduled events.
type azure struct{ name string }

const (
	azureEvents = "/metadata/scheduledevents?api-version=2020-07-01"
	azureName   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
	// azureNotice is how long before an eviction Azure says so, at least.
	azureNotice = 30 * time.Second
)

// azureWords say what Azure does, of the events after which guests do not run on. A Freeze is a pause of seconds.
var azureWords = map[string]string{
	"Preempt":   "Azure evicts the machine",
	"Terminate": "Azure deletes the machine",
	"Reboot":    "Azure reboots the machine",
	"Redeploy":  "Azure moves the machine to other hardware",
}

func (a *azure) findNotices(ctx context.Context, m *server) (out []fleet.EndNotice, err error) {
	header := map[string]string{"Metadata": "true"}
	if a.name == "" {
		name, err := m.get(ctx, azureName, header)
		if err != nil {
			return nil, err
		}
		a.name = strings.TrimSpace(string(name))
	}
	body, err := m.get(ctx, azureEvents, header)
	if err != nil {
		return nil, err
	}
	var said struct {
		Events []struct {
			EventID     string `json:"EventId"`
			EventType   string
			Resources   []string
			EventStatus string
			NotBefore   string
		}
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, fmt.Errorf("%s%s: %w", m.url, azureEvents, err)
	}
	now := time.Now()
	for _, e := range said.Events {
		says, counts := azureWords[e.EventType]
		if !counts || !slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, a.name) }) {
			continue
		}
		n := fleet.EndNotice{ID: e.EventID, Says: says, At: now.Add(azureNotice), Since: now, Guess: true}
		if at, err := http.ParseTime(e.NotBefore); err == nil {
			n.At, n.Guess = at, false
		}
		if e.EventStatus == "Started" && n.Guess {
			n.At = now
		}
		out = append(out, n)
	}
	return out, nil
}
