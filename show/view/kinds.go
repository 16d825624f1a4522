package view

import (
	"fmt"
	"slices"
	"strings"

	"pagurus/fleet"
)

// GuestKind is a kind of guest, as some hosts run it: with one accelerator, if there are several.
type GuestKind struct {
	Kind        fleet.Kind     `json:"kind"`
	Accelerator string         `json:"accelerator,omitempty"` // "kvm" or "tcg" (software emulation); empty: it needs none
	Hosts       []fleet.HostID `json:"hosts"`
	Can         []KindAbility  `json:"can"`
}

// KindAbility is something that guests of a kind can do on some hosts.
type KindAbility struct {
	Name  string         `json:"name"`
	Hosts []fleet.HostID `json:"hosts"`         // of the kind's, those that can
	Why   []string       `json:"why,omitempty"` // what the others say, for people, without repetition
}

// answer says whether guests of a kind can do something on a host.
type answer struct {
	can bool
	why string // why not, for people; empty: nothing is known
}

func can(is bool, why string) answer { return answer{can: is, why: why} }

// abilityRow is one row of the table of kinds.
type abilityRow struct {
	name  string
	needs string // what a host must have for it, for people; empty: nothing more
	ask   func(fleet.KindTraits, fleet.Abilities) answer
}

// abilityRows are what one may want of a guest, from what drivers report. A test fails where a field that a
// driver may set changes no row.
var abilityRows = []abilityRow{
	{"moves while it runs", "", func(_ fleet.KindTraits, a fleet.Abilities) answer { return can(a.Live, "") }},
	{"sends memory in rounds while it runs", "containers: PAGEMAP_SCAN, Linux 6.7", func(_ fleet.KindTraits, a fleet.Abilities) answer {
		return can(a.Live && a.NoRounds == "", a.NoRounds)
	}},
	{"post-copy", "userfaultfd", func(_ fleet.KindTraits, a fleet.Abilities) answer { return can(a.PostCopy, a.NoPostCopy) }},
	{"post-copy: requested pages have a connection of their own", "virtual machines: QEMU 8", func(_ fleet.KindTraits, a fleet.Abilities) answer { return can(a.Preempt, "") }},
	{"compressed memory", "virtual machines: QEMU 9 with zstd", func(_ fleet.KindTraits, a fleet.Abilities) answer { return can(a.Compress, "") }},
	{"checkpoints", "virtual machines: QEMU 9 and userfaultfd; containers: PAGEMAP_SCAN, Linux 6.7", func(_ fleet.KindTraits, a fleet.Abilities) answer { return can(a.Checkpoint, a.NoCheckpoint) }},
	{"frames pass without a process between", "virtual machines: KVM and vhost-net", func(t fleet.KindTraits, a fleet.Abilities) answer {
		return can(a.VhostNet || !t.Tap, "")
	}},
	{"has files of other machines", "containers: an NFS client in the host's kernel", func(t fleet.KindTraits, a fleet.Abilities) answer {
		return can(a.Files || t.MountsFiles, a.NoFiles)
	}},
	{"runs at the speed of its host", "virtual machines: KVM", func(_ fleet.KindTraits, a fleet.Abilities) answer {
		return can(a.Accelerator == "" || a.Accelerator == fleet.KVM, a.Emulated)
	}},
	{"has a kernel of its own", "", func(t fleet.KindTraits, _ fleet.Abilities) answer { return can(t.OwnPageCache, "") }},
	{"free memory and dropped page cache are not sent", "", func(t fleet.KindTraits, _ fleet.Abilities) answer { return can(t.SkipsZeroes, "") }},
	{"its clock stops while it is suspended", "", func(t fleet.KindTraits, _ fleet.Abilities) answer { return can(t.OwnClock, "") }},
	{"can be tuned (`--tune`)", "", func(t fleet.KindTraits, _ fleet.Abilities) answer { return can(t.Tunable, "") }},
	{"can have a device of its host (`--device`)", "an IOMMU, and a device for guests", func(t fleet.KindTraits, _ fleet.Abilities) answer { return can(t.Passes, "") }},
	{"only its resident memory is sent", "", func(t fleet.KindTraits, _ fleet.Abilities) answer { return can(t.ResidentOnly, "") }},
	{"each mapping of its programs adds to the downtime", "", func(t fleet.KindTraits, _ fleet.Abilities) answer { return can(t.MappingsCost, "") }},
}

// Kinds lists the kinds of guest that hosts run, and what they can do there.
func (c Cluster) Kinds() []GuestKind {
	out := []GuestKind{}
	for _, t := range fleet.Kinds {
		for _, h := range c.Hosts {
			a, has := h.Facts.Abilities[t.Kind]
			if !has || a.Trouble != "" {
				continue
			}
			i := slices.IndexFunc(out, func(k GuestKind) bool { return k.Kind == t.Kind && k.Accelerator == a.Accelerator })
			if i < 0 {
				i = len(out)
				out = append(out, newGuestKind(t.Kind, a.Accelerator))
			}
			out[i].add(h.ID, t, a)
		}
	}
	slices.SortStableFunc(out, func(a, b GuestKind) int { return Compare(a.name(), b.name()) })
	return out
}

func newGuestKind(kind fleet.Kind, accelerator string) GuestKind {
	k := GuestKind{Kind: kind, Accelerator: accelerator, Hosts: []fleet.HostID{}}
	for _, row := range abilityRows {
		k.Can = append(k.Can, KindAbility{Name: row.name, Hosts: []fleet.HostID{}})
	}
	return k
}

// add adds what a host can do.
func (k *GuestKind) add(id fleet.HostID, t fleet.KindTraits, a fleet.Abilities) {
	k.Hosts = append(k.Hosts, id)
	for i, row := range abilityRows {
		to, is := &k.Can[i], row.ask(t, a)
		switch {
		case is.can:
			to.Hosts = append(to.Hosts, id)
		case is.why != "" && !slices.Contains(to.Why, is.why):
			to.Why = append(to.Why, is.why)
		}
	}
}

// name is that of `pagurus host ls`.
func (k GuestKind) name() string {
	if k.Accelerator == "" {
		return string(k.Kind)
	}
	return fmt.Sprintf("%s/%s", k.Kind, k.Accelerator)
}

// word says how many of a kind's hosts can do something.
func (a KindAbility) word(of int) string {
	switch {
	case len(a.Hosts) == 0:
		return "no"
	case len(a.Hosts) == of:
		return "yes"
	}
	return fmt.Sprintf("%d of %d", len(a.Hosts), of)
}

// KindTable shows what the kinds of guest can do on the hosts that run them.
func (c Cluster) KindTable() Table {
	all := c.Kinds()
	t := Table{Columns: []string{"ABILITY"}, Empty: "no host runs guests: `pagurus host ls` says why"}
	if len(all) == 0 {
		return t
	}
	hosts, least := []string{"hosts"}, []string{"least memory"}
	for _, k := range all {
		t.Columns = append(t.Columns, strings.ToUpper(cell(k.name())))
		hosts = append(hosts, fmt.Sprint(len(k.Hosts)))
		least = append(least, Bytes(k.Kind.Traits().LeastMemoryBytes))
	}
	t.Rows = append(t.Rows, hosts, least)
	for i, row := range abilityRows {
		line := []string{row.name}
		for _, k := range all {
			line = append(line, k.Can[i].word(len(k.Hosts)))
			for _, why := range k.Can[i].Why {
				t.Notes = append(t.Notes, fmt.Sprintf("%s: %s: %s", k.name(), row.name, cell(why)))
			}
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

// KindAtBest is a kind of guest on a host that has everything.
type KindAtBest struct {
	Kind fleet.Kind
	Can  fleet.Abilities
}

// KindDocument is the table of kinds in Markdown, with what hosts need for each row.
func KindDocument(all []KindAtBest) string {
	var b strings.Builder
	head, rule, least := "| |", "| --- |", "| least memory of a guest |"
	for _, k := range all {
		head += fmt.Sprintf(" `%s` |", GuestKind{Kind: k.Kind, Accelerator: k.Can.Accelerator}.name())
		rule += " --- |"
		least += fmt.Sprintf(" %s |", Bytes(k.Kind.Traits().LeastMemoryBytes))
	}
	fmt.Fprintf(&b, "%s if the host has |\n%s --- |\n%s |\n", head, rule, least)
	for _, row := range abilityRows {
		fmt.Fprintf(&b, "| %s |", row.name)
		for _, k := range all {
			word := "no"
			if row.ask(k.Kind.Traits(), k.Can).can {
				word = "yes"
			}
			fmt.Fprintf(&b, " %s |", word)
		}
		fmt.Fprintf(&b, " %s |\n", row.needs)
	}
	return b.String()
}
