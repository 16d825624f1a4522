package archtest

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Each rule finds a violation, and accepts other code.
func TestRulesFindWhatBreaksThem(t *testing.T) {
	long := strings.Repeat("\n", mostFileLines)
	for _, c := range []struct{ path, src, want string }{
		{"decide/x/x.go", "package x", ""},
		{"decide/x/x.go", `package x; import "os/exec"`, "import"},
		{"decide/x/x.go", `package x; import "net/netip"`, ""},
		{"decide/x/x.go", `package x; import "github.com/a/b"`, "import"},
		{"decide/x/x.go", `package x; import "pagurus/serve/wire"`, "import"},
		{"decide/x/x.go", `package x; import "time"; var t = time.Now`, "pure"},
		{"decide/x/x.go", `package x; func f() { go f() }`, "pure"},
		{"act/x/x.go", `package x; import "pagurus/act/y"`, "import"},
		{"act/x/x.go", `package x; import "pagurus/act/x/inner"`, ""},
		{"act/x/x.go", `package x; import "pagurus/internal/fault"`, ""},
		{"act/x/one/x.go", `package x; import "pagurus/act/x/two"`, "import"},
		{"act/container/one/x.go", `package x; import "pagurus/act/container/two"`, ""},
		{"act/container/one/x.go", `package x; import "pagurus/act/overlay"`, "import"},
		{"act/x/x.go", `package x; import "pagurus/decide/cost"`, "import"},
		{"serve/x/x.go", `package x; import "pagurus/act/y"`, "import"},
		{"serve/agent/drivertest/x.go", `package x; import "pagurus/internal/testkit"`, ""},
		{"serve/x/x.go", `package x; import "pagurus/internal/testkit"`, "import"},
		{"show/x/x.go", `package x; import "pagurus/serve/controller"`, "import"},
		{"show/x/x.go", `package x; import "pagurus/serve/wire"`, ""},
		{"sim/x.go", `package x; import "pagurus/decide/cost"`, "import"},
		{"decide/x/x.go", `package x; import "pagurus/fleet"; func f(k fleet.Kind) bool { return k == fleet.VM }`, "kind"},
		{"serve/x/x.go", `package x; import "pagurus/fleet"; func f(k fleet.Kind) { switch k { case fleet.Container: } }`, "kind"},
		{"decide/x/x.go", `package x; import "pagurus/fleet"; func f(m map[fleet.Kind]int) int { return m[fleet.VM] }`, "kind"},
		{"decide/x/x.go", `package x; import "pagurus/fleet"; func f(m map[fleet.Kind]int, k fleet.Kind) int { return m[k] }`, ""},
		{"cmd/pagurus-agent/x.go", `package x; import "pagurus/fleet"; func f(m map[fleet.Kind]int) int { return m[fleet.VM] }`, "kind"},
		{"cmd/pagurus-agent/host.go", `package x; import "pagurus/fleet"; func f(m map[fleet.Kind]int) int { return m[fleet.VM] }`, ""},
		{"cmd/pagurus-guest/x.go", `package x; import "pagurus/act/guestlink"`, ""},
		{"cmd/pagurus-guest/x.go", `package x; import "pagurus/serve/agent"`, "import"},
		{"cmd/pagurus-guest/x.go", `package x; import "net/http"`, "import"},
		{"cmd/pagurus/x.go", `package x; import "pagurus/act/qemu/qmp"`, "import"},
		{"cmd/pagurus-agent/x.go", `package x; import "pagurus/act/qemu"`, ""},
		{"cmd/x/x_test.go", `package x; import "pagurus/cmd/y"`, "import"},
		{"serve/x/x_test.go", `package x; import "pagurus/act/y"`, ""},
		{"serve/x/x.go", "package x; func f(g *G) { g.State = 1 }", "state"},
		{"serve/x/x.go", "package x; func f(g *G) { g.Gen++ }", "state"},
		{"serve/x/x.go", "package x; var g = G{State: 1}", ""},
		{"decide/lifecycle/x.go", "package x; func f(g *G) { g.State = 1 }", ""},
		{"serve/x/x.go", "package x; type Exported int", "comment"},
		{"serve/x/x.go", "package x; type hidden int; func (hidden) Read() {}", ""},
		{"serve/x/x.go", "package x; type hidden[T any] int; func (h *hidden[T]) Read() {}", ""},
		{"serve/x/x.go", "package x\n// Group.\nconst (\nA = 1\nB = 2\n)", ""},
		{"serve/x/x.go", "package x; const A = 1", "comment"},
		{"serve/x/x.go", "package x; type hostInfo int", "name"},
		{"serve/x/x.go", "package x; func handleHTTP() {}", ""},
		{"serve/util/x.go", "package x", "name"},
		{"serve/x/x.go", "package x" + long + "\n\n", "file"},
		{"serve/x/x_test.go", "package x" + long, ""},
		{"serve/x/x.go", "package x; func f() {" + strings.Repeat("\n", mostFunctionLines) + "}", "function"},
		{"serve/x/x.go", "package x; func f(a, b, c int, d, e, g string) {}", "parameters"},
		{"serve/x/x.go", "package x; type i interface { a(); b(); c(); d(); e(); f(); g(); h() }", "interface"},
	} {
		s, err := parse(c.path, []byte(c.src))
		if err != nil {
			t.Fatal(err)
		}
		var rules []string
		for _, b := range checkFile(s) {
			rules = append(rules, b.rule)
		}
		want := []string{}
		if c.want != "" {
			want = []string{c.want}
		}
		if !slices.Equal(rules, want) {
			t.Errorf("%s\n%.80s\ngot %v, want %v", c.path, c.src, rules, want)
		}
	}
}

func TestPackagesNeedAComment(t *testing.T) {
	with, _ := parse("a/a.go", []byte("// Package a is.\npackage a"))
	without, _ := parse("b/b.go", []byte("package b"))
	if got := checkPackages([]source{with, without}); len(got) != 1 || got[0].what != "b" {
		t.Errorf("got %+v", got)
	}
}

func TestNoTwoPackagesHaveOneName(t *testing.T) {
	one, _ := parse("a/x/x.go", []byte("// Package x is.\npackage x"))
	two, _ := parse("b/x/x.go", []byte("// Package x is.\npackage x"))
	if got := checkPackages([]source{one, two}); len(got) != 1 || got[0].rule != "name" || got[0].what != "b/x" {
		t.Errorf("got %+v", got)
	}
}

func TestPackageSizes(t *testing.T) {
	file := func(path, imports string, lines int) source {
		s, err := parse(path, []byte("package x"+imports+strings.Repeat("\n", lines)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const small = `; import _ "pagurus/act/small"`
	few := file("act/small/s.go", "", leastPackageLines-1)
	one, two := file("serve/one/o.go", small, 10), file("serve/two/t.go", small, 10)
	test := file("serve/two/t_test.go", small, 10)
	half := mostPackageLines / 2
	for _, c := range []struct {
		all  []source
		want string
	}{
		{[]source{few, one}, "small act/small"},
		{[]source{few, one, test}, "small act/small"},
		{[]source{few, one, two}, ""},
		{[]source{few}, ""}, // a command
		{[]source{file("act/small/s.go", "", leastPackageLines), one}, ""},
		{[]source{file("act/x/a.go", "", half), file("act/x/b.go", "", half)}, ""},
		{[]source{file("act/x/a.go", "", half), file("act/x/b.go", "", half+1)}, "large act/x"},
		{[]source{file("act/x/a.go", "", half), file("act/x/b_test.go", "", half+1)}, ""},
	} {
		var got []string
		for _, b := range checkPackageSizes(c.all) {
			got = append(got, b.key())
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("got %v, want %q", got, c.want)
		}
	}
}

func TestWords(t *testing.T) {
	for name, want := range map[string][]string{
		"guestInfo2": {"guest", "info"}, "HTTPHandler": {"http", "handler"}, "database": {"database"}, "a_Base": {"a", "base"},
	} {
		if got := words(name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
