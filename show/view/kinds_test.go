package view

import (
	"reflect"
	"strings"
	"testing"

	"pagurus/fleet"
)

// described are fields that say how a kind is run, and why something is not, but not what it can do.
var described = map[string]bool{"Accelerator": true, "Emulated": true, "Version": true, "CPU": true, "Model": true, "Lacks": true, "Processor": true, "Trouble": true}

// What drivers can say of a kind changes the table.
func TestEveryAbilityHasARow(t *testing.T) {
	answers := func(traits fleet.KindTraits, a fleet.Abilities) (all []answer) {
		for _, row := range abilityRows {
			all = append(all, row.ask(traits, a))
		}
		return all
	}
	vary := func(v reflect.Value, i int) {
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(!f.Bool())
		case reflect.String:
			f.SetString("a reason")
		}
	}
	for i := range reflect.TypeFor[fleet.Abilities]().NumField() {
		name := reflect.TypeFor[fleet.Abilities]().Field(i).Name
		a := fleet.Abilities{Live: true}
		vary(reflect.ValueOf(&a).Elem(), i)
		if same := reflect.DeepEqual(answers(fleet.KindTraits{Tap: true}, a), answers(fleet.KindTraits{Tap: true}, fleet.Abilities{Live: true})); same && !described[name] {
			t.Errorf("Abilities.%s changes no row", name)
		}
	}
	for i := range reflect.TypeFor[fleet.KindTraits]().NumField() {
		f := reflect.TypeFor[fleet.KindTraits]().Field(i)
		var traits fleet.KindTraits
		vary(reflect.ValueOf(&traits).Elem(), i)
		// Whether memory is sent compressed is the driver's to say.
		if reflect.DeepEqual(answers(traits, fleet.Abilities{}), answers(fleet.KindTraits{}, fleet.Abilities{})) && f.Type.Kind() == reflect.Bool && f.Name != "Compresses" {
			t.Errorf("KindTraits.%s changes no row", f.Name)
		}
	}
}

func TestKindTable(t *testing.T) {
	s := fleet.NewSnapshot()
	s.At = noon
	none := Read(s).KindTable()
	add := func(id fleet.HostID, can map[fleet.Kind]fleet.Abilities) {
		s.Hosts[id] = fleet.Host{ID: id, State: fleet.HostUp, Facts: fleet.Facts{SeenAt: noon, Connected: true, Abilities: can}}
	}
	container := fleet.Abilities{Live: true, PostCopy: true, Checkpoint: true, Files: true}
	old := fleet.Abilities{Live: true, NoRounds: "the kernel is \x1b[31mold", NoPostCopy: "the kernel is old", NoCheckpoint: "the kernel is old", NoFiles: "its kernel has no NFS client"}
	add("new", map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, PostCopy: true, Preempt: true, Compress: true, VhostNet: true, Checkpoint: true, Accelerator: "kvm"}, fleet.Container: container})
	add("old", map[fleet.Kind]fleet.Abilities{fleet.VM: {Live: true, Accelerator: "tcg", Emulated: "this machine has no /dev/kvm"}, fleet.Container: old})
	add("less", map[fleet.Kind]fleet.Abilities{fleet.VM: {Trouble: "QEMU is missing"}, fleet.Container: container})
	c := Read(s)
	golden(t, "kinds", c.KindTable().Text()+none.Text())
	if all := c.Kinds(); len(all) != 3 || all[0].Kind != fleet.Container || len(all[0].Hosts) != 3 {
		t.Errorf("the kinds are %+v", all)
	}
}

func TestKindDocumentHasEveryRow(t *testing.T) {
	text := KindDocument([]KindAtBest{{fleet.VM, fleet.Abilities{Live: true, Accelerator: "kvm"}}, {fleet.Container, fleet.Abilities{}}})
	for _, row := range abilityRows {
		if !strings.Contains(text, "| "+row.name+" |") {
			t.Errorf("%q is not in\n%s", row.name, text)
		}
	}
	if !strings.Contains(text, "| moves while it runs | yes | no |") {
		t.Errorf("the first row is wrong:\n%s", text)
	}
}
