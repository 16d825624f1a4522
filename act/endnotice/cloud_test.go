package endnotice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"

	"pagurus/fleet"
)

// metadataServer plays the metadata services by their documentation, at their address.
type metadataServer struct {
	mu     sync.Mutex
	tokens map[string]bool
	calls  int               // for tokens
	paths  map[string]string // what is there; the rest is 404
}

func (m *metadataServer) set(path, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paths[path] = text; text == "" {
		delete(m.paths, path)
	}
}

func (m *metadataServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Header.Get("X-Forwarded-For") != "" { // EC2 gives no token to what passed a proxy
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if r.URL.Path == amazonToken {
		if r.Method != http.MethodPut || r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "21600" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		m.calls++
		t := fmt.Sprint("token", m.calls)
		m.tokens[t] = true
		fmt.Fprint(w, t)
		return
	}
	allowed := true
	switch {
	case strings.HasPrefix(r.URL.Path, "/latest/"):
		if allowed = m.tokens[r.Header.Get("X-aws-ec2-metadata-token")]; !allowed {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	case strings.HasPrefix(r.URL.Path, "/computeMetadata/"):
		allowed = r.Header.Get("Metadata-Flavor") == "Google"
	case strings.HasPrefix(r.URL.Path, "/metadata/"):
		allowed = r.Header.Get("Metadata") == "true" && r.URL.Query().Get("api-version") != ""
	}
	text, there := m.paths[r.URL.Path]
	switch {
	case !allowed:
		w.WriteHeader(http.StatusBadRequest)
	case !there:
		w.WriteHeader(http.StatusNotFound)
	default:
		fmt.Fprint(w, text)
	}
}

// insideClouds is TestClouds's part in a network of its own.
func insideClouds() error {
	for _, args := range []string{"link set lo up", "addr add 169.254.169.254/32 dev lo"} {
		if text, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, text)
		}
	}
	dead := newCloud(fleet.AWSNotice, metadata, &amazon{})
	if all, err := dead.findNotices(context.Background()); err == nil {
		return fmt.Errorf("nobody is there, and it says %+v", all)
	}
	l, err := net.Listen("tcp", "169.254.169.254:80")
	if err != nil {
		return err
	}
	m := &metadataServer{tokens: map[string]bool{}, paths: map[string]string{}}
	go func() { _ = http.Serve(l, m) }()
	return errors.Join(useAmazon(m), useGoogle(m), useAzure(m))
}

// findNotices asks once more what stands.
func findNotices(c *cloud, want int) (fleet.EndNotice, error) {
	all, err := c.findNotices(context.Background())
	if err == nil && len(all) != want {
		err = fmt.Errorf("%s: %d notices, not %d: %+v", c.kind, len(all), want, all)
	}
	if err != nil || want == 0 {
		return fleet.EndNotice{}, err
	}
	return all[0], nil
}

func useAmazon(m *metadataServer) error {
	c := newCloud(fleet.AWSNotice, metadata, &amazon{})
	if _, err := findNotices(c, 0); err != nil {
		return err
	}
	at := time.Now().Add(2 * time.Minute).UTC().Truncate(time.Second)
	m.set(amazonSpot, fmt.Sprintf(`{"action": "terminate", "time": %q}`, at.Format(time.RFC3339)))
	n, err := findNotices(c, 1)
	if err != nil || !n.At.Equal(at) || n.Kind != fleet.AWSNotice || n.Says != "Amazon takes the instance back" {
		return fmt.Errorf("aws: %+v: %w", n, err)
	}
	again, err := findNotices(c, 1)
	if err != nil || again != n || m.calls != 1 {
		return fmt.Errorf("aws again: %+v, %d tokens: %w", again, m.calls, err)
	}
	clear(m.tokens) // the instance was hibernated, say
	if _, err := findNotices(c, 1); err == nil {
		return errors.New("aws: an invalid token is taken")
	}
	if n, err := findNotices(c, 1); err != nil || n.ID != again.ID {
		return fmt.Errorf("aws with another token: %+v: %w", n, err)
	}
	m.set(amazonSpot, `{"action": `)
	if _, err := findNotices(c, 1); err == nil {
		return errors.New("aws: half an answer")
	}
	m.set(amazonSpot, `{"action": "hibernate", "time": "2017-09-18T08:22:00Z"}`)
	if n, err := findNotices(c, 1); err != nil || !strings.Contains(n.Says, "hibernates") {
		return fmt.Errorf("aws: %+v: %w", n, err)
	}
	m.set(amazonSpot, "")
	_, err = findNotices(c, 0)
	return err
}

func useGoogle(m *metadataServer) error {
	c := newCloud(fleet.GoogleNotice, metadata, &google{})
	m.set(googlePreempted, "FALSE")
	m.set(googleMaintenance, "NONE")
	if _, err := findNotices(c, 0); err != nil {
		return err
	}
	m.set(googleMaintenance, "MIGRATE_ON_HOST_MAINTENANCE")
	if _, err := findNotices(c, 0); err != nil {
		return err
	}
	m.set(googleMaintenance, "TERMINATE_ON_HOST_MAINTENANCE")
	n, err := findNotices(c, 1)
	if left := time.Until(n.At); err != nil || left < 50*time.Second || left > time.Minute {
		return fmt.Errorf("google: %+v: %w", n, err)
	}
	m.set(googleMaintenance, "NONE")
	if _, err := findNotices(c, 0); err != nil {
		return err
	}
	m.set(googlePreempted, "TRUE")
	n, err = findNotices(c, 1)
	if left := time.Until(n.At); err != nil || left < 20*time.Second || left > 30*time.Second || !n.Guess {
		return fmt.Errorf("google: %+v: %w", n, err)
	}
	time.Sleep(1100 * time.Millisecond)
	if again, err := findNotices(c, 1); err != nil || again != n {
		return fmt.Errorf("google: its end moves: %+v: %w", again, err)
	}
	return nil
}

func useAzure(m *metadataServer) error {
	c := newCloud(fleet.AzureNotice, metadata, &azure{})
	const events = "/metadata/scheduledevents"
	m.set("/metadata/instance/compute/name", "vmss_0")
	event := func(kind, status, before string, of ...string) {
		text, _ := json.Marshal(map[string]any{"DocumentIncarnation": 1, "Events": []map[string]any{{
			"EventId": "f020ba2e", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": of, "EventStatus": status, "NotBefore": before, "Description": "", "EventSource": "Platform", "DurationInSeconds": -1,
		}}})
		m.set(events, string(text))
	}
	m.set(events, `{"DocumentIncarnation": 1, "Events": []}`)
	if _, err := findNotices(c, 0); err != nil {
		return err
	}
	at := time.Now().Add(time.Minute).UTC().Truncate(time.Second)
	before := at.Format(http.TimeFormat)
	event("Preempt", "Scheduled", before, "vmss_1")
	if _, err := findNotices(c, 0); err != nil {
		return fmt.Errorf("another machine's: %w", err)
	}
	event("Freeze", "Scheduled", before, "vmss_0")
	if _, err := findNotices(c, 0); err != nil {
		return err
	}
	event("Preempt", "Scheduled", before, "vmss_1", "VMSS_0")
	n, err := findNotices(c, 1)
	if err != nil || !n.At.Equal(at) || n.ID != "f020ba2e" || n.Says != "Azure evicts the machine" || n.Guess {
		return fmt.Errorf("azure: %+v: %w", n, err)
	}
	event("Preempt", "Started", "", "vmss_0")
	if n, err := findNotices(c, 1); err != nil || !n.At.Equal(at) {
		return fmt.Errorf("azure: it has begun: %+v: %w", n, err)
	}
	event("Preempt", "Completed", "")
	_, err = findNotices(c, 0)
	return err
}
