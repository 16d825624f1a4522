package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"pagurus/act/container"
	"pagurus/act/qemu"
	"pagurus/act/xen"
	"pagurus/fleet"
	"pagurus/show/view"
)

var update = flag.Bool("update", false, "print the table of docs/hypervisors.md again")

// The document has the table between these lines.
const (
	kindsDocument = "../../docs/hypervisors.md"
	kindsBegin    = "<!-- printed from what the drivers say: go test ./cmd/pagurus-agent -run TestKindsArePrinted -update -->\n"
	kindsEnd      = "<!-- end of the printed table -->\n"
)

// The document says of each kind what its driver says where the host has everything.
func TestKindsArePrinted(t *testing.T) {
	const hasClient = ""
	table := view.KindDocument([]view.KindAtBest{
		{Kind: fleet.VM, Can: qemu.AtBest(qemu.Hardware)},
		{Kind: fleet.VM, Can: qemu.AtBest(qemu.Emulation)},
		{Kind: fleet.Container, Can: withFiles(container.AtBest(), hasClient)},
		{Kind: fleet.Xen, Can: xen.AtBest()},
	})
	text, err := os.ReadFile(kindsDocument)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), kindsBegin)
	printed, after, ends := strings.Cut(rest, kindsEnd)
	if !ok || !ends {
		t.Fatalf("%s has no place for the table", kindsDocument)
	}
	if *update {
		if err := os.WriteFile(kindsDocument, []byte(before+kindsBegin+"\n"+table+"\n"+kindsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if printed != "\n"+table+"\n" {
		t.Errorf("%s has another table than the drivers: go test ./cmd/pagurus-agent -run TestKindsArePrinted -update", kindsDocument)
	}
}
