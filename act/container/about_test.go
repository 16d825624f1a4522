package container

import (
	"strings"
	"testing"

	"pagurus/act/container/transfer"
	"pagurus/act/host"
	"pagurus/act/host/port"
	"pagurus/fleet"
)

// TestSuits: a checkpoint of another version, image, processor, network or size is refused in words, before anything is made of it. A
// host with more than it needs is as good.
func TestSuits(t *testing.T) {
	is := about{
		Protocol: fleet.Protocol(), Guest: "j1g0", Index: 1, Subnet: 7, Need: fleet.Resources{MemoryBytes: 64 << 20}, Image: "sha256-1",
		Processor: []string{"avx", "sse"}, Folders: []transfer.Folder{{At: "/work"}},
	}
	here := record{
		Record: host.Record{Guest: "j1g0"}, Need: fleet.Resources{MemoryBytes: 64 << 20}, Image: "/run/container-images/sha256-1",
		Port: port.Port{Subnet: 7, Index: 1}, Folders: []folder{{At: "/work"}},
	}
	for says, change := range map[string]func(*about, *record, *[]string){
		"": func(a *about, r *record, has *[]string) {
			*has, r.Need.MemoryBytes, r.Folders = append(*has, "aes"), 128<<20, append(r.Folders, folder{At: "/more"})
			a.Protocol = fleet.Protocol() - 1
		},
		"the agent that made the checkpoint":                                           func(a *about, _ *record, _ *[]string) { a.Protocol = fleet.Protocol() + 2 },
		"of image sha256-1, and not of other":                                          func(_ *about, r *record, _ *[]string) { r.Image = "/elsewhere/other" },
		"this host's processor lacks what programs in the checkpoint have found (avx)": func(_ *about, _ *record, has *[]string) { *has = []string{"sse"} },
		"guest 1 of network 7":                                                         func(_ *about, r *record, _ *[]string) { r.Port.Index = 0 },
		"64 MiB of memory":                                                             func(_ *about, r *record, _ *[]string) { r.Need.MemoryBytes = 32 << 20 },
		"have /work":                                                                   func(_ *about, r *record, _ *[]string) { r.Folders = nil },
	} {
		a, r, has := is, here, []string{"avx", "sse"}
		change(&a, &r, &has)
		if err := a.suits(r, has); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	a := is
	folder := t.TempDir()
	if err := a.write(folder); err != nil {
		t.Fatal(err)
	}
	if got, err := readAbout(folder); err != nil || got.Image != a.Image || got.suits(here, []string{"avx", "sse"}) != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
