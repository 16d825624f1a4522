package main

import (
	"testing"
	"time"
)

// One guest: what programs see, and how they end.
func TestGuest(t *testing.T) {
	folder := testImage(t, "openmpi")
	h := network(t)
	began := time.Now()
	g := bootVM(t, h, folder, 0, 1)
	g.join(t)
	t.Logf("set up after %v", time.Since(began))
	o := g.run(t, time.Minute, sh("id; hostname; pwd; echo $HOME; touch $HOME/x; cat /proc/mounts; cat /proc/1/status | grep -e VmRSS -e RssAnon -e ctxt; ip addr; ip neigh; ls -la / /run/pagurus; free -m; ps aux | tail -5; dmesg | tail -20; cat; exit 3"), "input\n")
	t.Logf("%+v", o.exit)
	t.Log(o.took, o.stdout, o.stderr)
	o = g.run(t, time.Minute, sh("grep -e ctxt /proc/1/status; kill -TERM $$"), "")
	t.Logf("%+v", o)
}
