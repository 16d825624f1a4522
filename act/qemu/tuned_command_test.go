package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

func TestWhatQEMUIsTold(t *testing.T) {
	const gib = 1 << 30
	s := fleet.Shape{Sockets: 2, Cores: 2, Threads: 1, Nodes: []fleet.ShapeNode{
		{CPUs: 2, MemoryBytes: gib, Distances: []int{10, 21}}, {CPUs: 2, MemoryBytes: gib, Distances: []int{21, 10}},
	}}
	l := fleet.Layout{Nodes: []fleet.LayoutNode{{Hosts: []int{3}, PageBytes: gib}, {Hosts: []int{0, 4}}}}
	want := "-smp 4,sockets=2,cores=2,threads=1" +
		" -object memory-backend-file,id=node0,size=1073750016,host-nodes=3,policy=bind,mem-path=/proc/self/fd/4,share=on,prealloc=on" +
		" -object memory-backend-ram,id=node1,size=1073750016,host-nodes=0,host-nodes=4,policy=bind" +
		" -numa node,nodeid=0,memdev=node0,cpus=0,cpus=1 -numa node,nodeid=1,memdev=node1,cpus=2,cpus=3" +
		" -numa dist,src=0,dst=1,val=21 -numa dist,src=1,dst=0,val=21"
	if got := strings.Join((&tunedGuest{s, l, 2 * gib, 8192}).Args(4), " "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := (&tunedGuest{s, l, 2 * gib, 8192}).Bytes(); got != 2*gib+2*8192 {
		t.Errorf("in all there are %d bytes", got)
	}
	plain := strings.Join((&tunedGuest{Shape: fleet.Shape{Sockets: 1, Cores: 1, Threads: 1}, MemoryBytes: gib}).Args(4), " ")
	if plain != "-smp 1,sockets=1,cores=1,threads=1 -object memory-backend-ram,id=node0,size=1073741824 -machine memory-backend=node0" {
		t.Error(plain)
	}
}

func TestEmulatedGuestsHaveSmallPages(t *testing.T) {
	l := fleet.Layout{Nodes: []fleet.LayoutNode{{PageBytes: 2 << 20}, {}}}
	g := &tunedGuest{Layout: l}
	g.Small()
	if at := g.At(); at.Nodes[0].PageBytes != 0 || len(at.Notes) != 1 || l.Nodes[0].PageBytes == 0 {
		t.Errorf("%+v of %+v", at, l)
	}
	if (*tunedGuest)(nil).At() != nil {
		t.Error("a guest without a shape is somewhere")
	}
}

// Unavailable pages are dropped with their file. The test wants more than any machine
// has, of a size that no other test reserves.
func TestHugePagesThatAreNotThereAreLeftOut(t *testing.T) {
	const page, pib = 1 << 30, 1 << 50
	g := &tunedGuest{Shape: fleet.Shape{Nodes: []fleet.ShapeNode{{MemoryBytes: pib}, {MemoryBytes: page}, {MemoryBytes: page}}}}
	came := fleet.Layout{Nodes: []fleet.LayoutNode{{PageBytes: page}, {}, {PageBytes: 12345 << 20}}, Notes: []string{"a note"}}
	g.Layout = came
	if files := g.Reserve(); len(files) != 0 {
		t.Errorf("%d files have the pages", len(files))
	}
	for i, n := range g.At().Nodes {
		if n.PageBytes != 0 {
			t.Errorf("node %d has pages of %d bytes", i, n.PageBytes)
		}
	}
	if notes := g.At().Notes; len(notes) != 3 || !strings.HasPrefix(notes[1], "node 0 of the guest has no huge pages: ") ||
		!strings.HasPrefix(notes[2], "node 2 of the guest has no huge pages: make memory") {
		t.Errorf("the notes are %q", notes)
	}
	if came.Nodes[0].PageBytes != page || len(came.Notes) != 1 {
		t.Errorf("the layout it came with is %+v", came)
	}
	if args := strings.Join(g.Args(4), " "); strings.Contains(args, "prealloc") {
		t.Error(args)
	}
	if (*tunedGuest)(nil).Reserve() != nil {
		t.Error("a guest without a shape has pages")
	}
}

// A thread of the test stands for a guest's CPU.
func TestThreadsAreKeptWhereTheyShallBe(t *testing.T) {
	ready, done := make(chan int), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its affinity
		ready <- unix.Gettid()
		<-done
	}()
	thread := <-ready
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		t.Fatal(err)
	}
	last := 0
	for c := range 1024 {
		if mine.IsSet(c) {
			last = c
		}
	}
	ask := func(_ context.Context, command string, _, out any) error {
		if command != "query-cpus-fast" {
			return errors.New(command)
		}
		text, _ := json.Marshal([]map[string]int{{"cpu-index": 0, "thread-id": thread}})
		return json.Unmarshal(text, out)
	}
	if err := (&tunedGuest{Layout: fleet.Layout{Pins: [][]int{{last}}}}).Pin(t.Context(), os.Getpid(), ask); err != nil {
		t.Fatal(err)
	}
	var got unix.CPUSet
	if err := unix.SchedGetaffinity(thread, &got); err != nil || got.Count() != 1 || !got.IsSet(last) {
		t.Errorf("it runs on %v, %v", got, err)
	}
	if err := unix.SchedGetaffinity(0, &got); err != nil || got != mine {
		t.Errorf("another runs on %v, %v", got, err)
	}
	if err := (&tunedGuest{Layout: fleet.Layout{Pins: [][]int{{1000}}}}).Pin(t.Context(), os.Getpid(), ask); err == nil {
		t.Error("it was pinned to a CPU that is not there")
	}
	if err := (&tunedGuest{Layout: fleet.Layout{}}).Pin(t.Context(), os.Getpid(), nil); err != nil {
		t.Error(err)
	}
}

func TestLevelsHaveModels(t *testing.T) {
	before := ""
	for _, level := range []string{"x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4"} {
		m := tunedModel(level)
		if !strings.HasPrefix(m, before) || m == before || slices.Contains([]string{"", "host"}, m) {
			t.Errorf("%s is %q", level, m)
		}
		before = m
	}
	if tunedModel("") != "" {
		t.Error("no level has a model")
	}
}

// A guest keeps its idle CPUs only where nothing else could use them, and sees none of it.
func TestKeepsIdleCPUs(t *testing.T) {
	level := fleet.Shape{CPU: "x86-64-v2"}
	for _, c := range []struct {
		why   string
		guest tunedGuest
		kept  fleet.CPUSet
		want  bool
	}{
		{"all are kept", tunedGuest{Shape: level, Layout: fleet.Layout{Pins: [][]int{{3}, {2}}, Rest: []int{0, 1}}}, fleet.CPUSet{2, 3}, true},
		{"none is", tunedGuest{Shape: level, Layout: fleet.Layout{Pins: [][]int{{2}, {3}}, Rest: []int{0}}}, nil, false},
		{"one is not", tunedGuest{Shape: level, Layout: fleet.Layout{Pins: [][]int{{1}, {2}}, Rest: []int{0}}}, fleet.CPUSet{2, 3}, false},
		{"two share one", tunedGuest{Shape: level, Layout: fleet.Layout{Pins: [][]int{{2}, {2}}, Rest: []int{0}}}, fleet.CPUSet{2, 3}, false},
		{"one may float", tunedGuest{Shape: level, Layout: fleet.Layout{Pins: [][]int{{2, 3}}, Rest: []int{0}}}, fleet.CPUSet{2, 3}, false},
		{"other threads are there", tunedGuest{Shape: level, Layout: fleet.Layout{Pins: [][]int{{2}, {3}}, Rest: []int{0, 3}}}, fleet.CPUSet{2, 3}, false},
		{"it is not pinned", tunedGuest{Shape: level}, fleet.CPUSet{2, 3}, false},
		{"it has the host's model", tunedGuest{Layout: fleet.Layout{Pins: [][]int{{2}}}}, fleet.CPUSet{2, 3}, false},
	} {
		if got := c.guest.keeps(c.kept); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
	}
	m := machine{guest: "j1g0", accelerator: Hardware, cpus: 1, memoryBytes: mebi}
	without := lines(args(m))
	m.keeps = true
	if got := strings.Replace(lines(args(m)), "-overcommit cpu-pm=on\n", "", 1); got != without || lines(args(m)) == without {
		t.Errorf("a guest that keeps its CPUs is started by\n%s", lines(args(m)))
	}
}
