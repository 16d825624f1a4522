package controller

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// An agent that is one version apart is let in, and its host says which side to upgrade next.
// The sentence goes when both speak the same.
func TestAgentOfANeighbouringVersion(t *testing.T) {
	r := newRig(t)
	r.factsEvery = time.Hour
	a := r.attach("host1")
	for protocol, upgrade := range map[int]string{fleet.Protocol() - 1: "upgrade its agent", fleet.Protocol() + 1: "upgrade the controller", fleet.Protocol(): ""} {
		f := r.facts("host1")
		f.Protocol = protocol
		if err := a.session.Send(r.ctx, wire.Up{Facts: &f}); err != nil {
			t.Fatal(err)
		}
		r.until("the host to say "+upgrade, func(s fleet.Snapshot) bool {
			h := s.Hosts["host1"]
			said := strings.Join(h.Facts.Troubles, "\n")
			return h.Facts.Protocol == protocol && (upgrade == "") == (said == "") && strings.Contains(said, upgrade)
		})
	}
}

// An agent that is too far apart is told so, and so is whoever looks at its host. It has not
// taken the place of the host, and comes in when it is upgraded.
func TestAgentThatIsApart(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	if _, err := wire.Enrol(r.ctx, r.addr, r.token(fleet.JoinToken{Role: fleet.HostRole}), dir, wire.Joining{Host: "host7", Machine: "machine"}); err != nil {
		t.Fatal(err)
	}
	credentials, err := identity.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	dialing := &http.Client{Transport: &http.Transport{TLSClientConfig: credentials.Client()}}
	for range 2 {
		o := &websocket.DialOptions{HTTPClient: dialing, HTTPHeader: http.Header{"Pagurus-Protocol": {"99"}}}
		conn, answer, err := websocket.Dial(r.ctx, "https://"+r.addr+"/v1/agent", o)
		if err == nil {
			conn.CloseNow()
			t.Fatal("it was let in")
		}
		if answer == nil || answer.StatusCode != http.StatusUnprocessableEntity || answer.Header.Get("Pagurus-Version") != "build" {
			t.Fatalf("%v: %v", answer, err)
		}
	}
	s := r.until("the host to say why", func(s fleet.Snapshot) bool { return len(s.Hosts["host7"].Facts.Troubles) == 1 })
	if h := s.Hosts["host7"]; h.Facts.Connected || !strings.HasPrefix(h.Facts.Troubles[0], "the agent of host7 speaks version 99") || !strings.HasSuffix(h.Facts.Troubles[0], "upgrade the controller") {
		t.Errorf("the host says %+v", h.Facts)
	}
	client, err := wire.Dial(wire.Config{Address: r.addr, Credentials: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	facts := r.facts("host7")
	facts.Address = "127.0.0.1"
	session, err := client.Attach(r.ctx, wire.Hello{Host: "host7", Facts: facts})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	r.until("the host to be well", func(s fleet.Snapshot) bool {
		h := s.Hosts["host7"]
		return h.Facts.Connected && len(h.Facts.Troubles) == 0
	})
}

// An order that an agent does not know fails, with its sentence, and the host goes on.
func TestAgentThatDoesNotKnowAnOrder(t *testing.T) {
	r := newRig(t)
	a := r.attach("host1", fleet.Start)
	job := r.submit(1)
	start := a.task(fleet.Start)
	a.report(fleet.Report{Order: start.Order, Outcome: fleet.Failed, Cause: "the agent of host1 does not know the order: upgrade the agent"})
	s := r.until("the job to fail", func(s fleet.Snapshot) bool { return s.Jobs[job].State == fleet.JobEnded })
	if j := s.Jobs[job]; j.Result != fleet.JobFailed || !strings.Contains(j.Cause, "upgrade the agent") {
		t.Errorf("%+v", j)
	}
	if !r.now().Hosts["host1"].Facts.Connected {
		t.Errorf("%+v", r.now().Hosts["host1"])
	}
}
