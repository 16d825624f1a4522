package placement

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

// Each way is tried in turn: in place, shared, mounted. What two hosts share is known by what
// it is: a directory of the same name may be another one.
func TestWaysOfDirectories(t *testing.T) {
	const nfs = "nfs server:/export/home"
	home := fleet.Directory{Path: "/home/ada", Source: nfs + "/ada"}
	own := fleet.Directory{Path: "/home/ada"}
	client := fleet.Abilities{Files: true}
	for name, c := range map[string]struct {
		dir     fleet.Directory
		machine string
		able    fleet.Abilities
		shared  []fleet.Directory
		way     Way
		why     string
	}{
		"on its machine":                 {own, "here", fleet.Abilities{}, nil, InPlace, ""},
		"shared":                         {home, "there", client, []fleet.Directory{{Path: "/scratch"}, {Path: "/home", Source: nfs}}, Shared, ""},
		"shared itself":                  {home, "there", client, []fleet.Directory{{Path: "/home/ada", Source: nfs + "/ada"}}, Shared, ""},
		"the whole server":               {fleet.Directory{Path: "/n/a", Source: "nfs s:/a"}, "there", client, []fleet.Directory{{Path: "/n", Source: "nfs s:/"}}, Shared, ""},
		"another of that name":           {home, "there", client, []fleet.Directory{{Path: "/home", Source: "nfs other:/export/home"}}, Mounted, ""},
		"another part of it":             {home, "there", client, []fleet.Directory{{Path: "/home", Source: "nfs server:/export"}}, Mounted, ""},
		"beginning with the same name":   {fleet.Directory{Path: "/home2", Source: nfs + "2"}, "there", client, []fleet.Directory{{Path: "/home", Source: nfs}}, Mounted, ""},
		"mounted when used":              {home, "there", client, []fleet.Directory{{Path: "/home"}}, Shared, ""},
		"its own disk, below an automat": {own, "there", client, []fleet.Directory{{Path: "/home"}}, Mounted, ""},
		"mounted":                        {own, "there", client, nil, Mounted, ""},
		"no client":                      {own, "there", fleet.Abilities{NoFiles: "its kernel has no NFS client"}, nil, NoWay, "has no way to /home/ada, which is on another machine: its kernel has no NFS client"},
		"an older agent":                 {own, "there", fleet.Abilities{}, nil, NoWay, "has no way to /home/ada, which is on another machine"},
	} {
		h := host("host1", 1<<30)
		h.Facts.Machine, h.Facts.Shared = c.machine, c.shared
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.Container: c.able, fleet.VM: {}}
		if way, why := Reach(c.dir, "here", h.Facts); way != c.way || why != c.why {
			t.Errorf("%s: %q, %q", name, way, why)
		}
		ask := Ask{Kind: fleet.Container, Files: "here", Directories: []fleet.Directory{{Path: "/x", Source: "x"}, c.dir}}
		h.Facts.Shared = append(h.Facts.Shared, fleet.Directory{Path: "/x", Source: "x"})
		v := NewSurvey(snapshot(h), nil)
		if got := Unfit(v, &h, ask); got != c.why {
			t.Errorf("%s: placed with %q", name, got)
		}
		if ask.Kind = fleet.VM; Unfit(v, &h, ask) != "" {
			t.Errorf("%s: a virtual machine mounts its files itself", name)
		}
		if ask.Kind = fleet.Auto; Unfit(v, &h, ask) != "" {
			t.Errorf("%s: an open kind can be a virtual machine", name)
		}
	}
}

// A kind left open is a container only where the files are.
func TestOpenKindFollowsTheFiles(t *testing.T) {
	near, far := host("near", 1<<30), host("far", 8<<30)
	for _, h := range []*fleet.Host{&near, &far} {
		h.Facts.Machine = string(h.ID)
		h.Facts.Abilities = map[fleet.Kind]fleet.Abilities{fleet.Container: {Live: true}, fleet.VM: {Accelerator: "tcg"}}
	}
	v := NewSurvey(snapshot(near, far), nil)
	ask := Ask{Need: fleet.Resources{CPUs: 1, MemoryBytes: 1 << 30}, Kind: fleet.Auto, Files: "near", Directories: []fleet.Directory{{Path: "/home/ada"}}}
	for _, want := range []Choice{{Host: "near", Kind: fleet.Container}, {Host: "far", Kind: fleet.VM}} {
		got, found := v.Best(ask)
		if !found || got.Host != want.Host || got.Kind != want.Kind || !strings.Contains(got.Reason, "; ") {
			t.Errorf("%+v, want %+v", got, want)
		}
		v.Reserve(got.Host, ask.Need)
	}
}
