package agent

import (
	"testing"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// A host that serves a job's files clones them for hosts that are in the job's network, and for nobody else.
func TestAnotherHostsFiles(t *testing.T) {
	cluster := authority(t)
	host := func(name string) *identity.Credentials {
		return joined(t, cluster, identity.Subject{Role: identity.Host, Name: name})
	}
	a, at := vaultHost(t, host("stock"), 8<<20)
	a.Vaults.Files = &memoryFiles{}
	a.mu.Lock()
	a.wanted = &fleet.Wanted{Networks: []fleet.Network{
		{Job: "j1", Share: &fleet.Share{Export: "/home/x"}, Endpoints: []fleet.Endpoint{{Host: "home"}}},
		{Job: "j2", Endpoints: []fleet.Endpoint{{Host: "home"}}},
	}}
	a.mu.Unlock()
	for _, c := range []struct {
		host string
		job  fleet.JobID
		says string
	}{{"home", "j1", "clone of /home/x: these"}, {"home", "j2", ""}, {"home", "j3", ""}, {"other", "j1", ""}} {
		mine := &Agent{Config: Config{Host: fleet.HostID(c.host), Vaults: Vaults{Credentials: host(c.host)}}}
		w := &taskRun{task: fleet.Task{Job: fleet.Job{ID: c.job}, FileHost: &fleet.FileHost{Host: "stock", Address: at}}}
		ask, end := mine.askFiles(w)
		answer, err := ask(t.Context(), "clone", []byte("these"))
		end()
		if string(answer) != c.says || (err == nil) != (c.says != "") {
			t.Errorf("%s asks about %s: %q, %v", c.host, c.job, answer, err)
		}
	}
	if ask, _ := a.askFiles(&taskRun{task: fleet.Task{FileHost: &fleet.FileHost{Host: "stock"}}}); ask != nil {
		t.Error("a host asks itself, or nobody knows where")
	}
}
