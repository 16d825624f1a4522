package main_test

import (
	"os"
	"strings"
	"testing"
	"time"
	"pagurus/fleet"
)

func TestDebug(t *testing.T) {
	name := os.Getenv("DBG_IMAGE")
	if name == "" {
		t.Skip()
	}
	folder := testImage(t, name)
	h := network(t)
	guests := []*vm{boot(t, h, folder, 0, 2), boot(t, h, folder, 1, 2)}
	for _, g := range guests {
		g.setup.MPI = strings.TrimRight(name, "4")
	}
	joinAll(t, guests)
	os.Remove("/tmp/dbg.cmd")
	os.WriteFile("/tmp/dbg.ready", nil, 0o644)
	defer os.Remove("/tmp/dbg.ready")
	for {
		b, err := os.ReadFile("/tmp/dbg.cmd")
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		os.Remove("/tmp/dbg.cmd")
		if strings.HasPrefix(string(b), "quit") {
			return
		}
		p := sh(string(b))
		if strings.HasPrefix(string(b), "mpi ") {
			p = fleet.Program{Args: strings.Fields(string(b))[1:], Dir: "/tmp", MPI: true, Ranks: 2}
		}
		o := guests[0].run(t, 5*time.Minute, p, "")
		os.WriteFile("/tmp/dbg.tmp", []byte(o.took.String()+"\n"+o.stdout+o.stderr), 0o644)
		os.Rename("/tmp/dbg.tmp", "/tmp/dbg.out")
	}
}
