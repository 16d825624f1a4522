package archtest

import (
	"go/ast"
	"testing"
)

// measuresTheJail is the one program that may start a guest's QEMU without its jail.
const measuresTheJail = "cmd/pagurus-bench"

// leavesJailOut is where a file could have a QEMU start outside its jail: nil is nowhere.
func leavesJailOut(s source) (at ast.Node) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr: // jail.Entered, or config.Begin
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "jail" && n.Sel.Name == "Entered" {
				at = n
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Begin" {
				at = n
			}
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if field, ok := left.(*ast.SelectorExpr); ok && field.Sel.Name == "Begin" {
					at = n
				}
			}
		}
		return at == nil
	})
	return at
}

// TestNobodyLeavesTheJailOut: no daemon and no command has a way to start QEMU without its jail, also by no hidden setting.
func TestNobodyLeavesTheJailOut(t *testing.T) {
	found := false
	for _, s := range repository(t) {
		at := leavesJailOut(s)
		switch {
		case at == nil || s.test() || s.dir() == "act/qemu": // its own default is the jail
		case s.dir() == measuresTheJail:
			found = true
		default:
			t.Errorf("%s:%d may start a QEMU without its jail, which only %s may", s.path, s.line(at), measuresTheJail)
		}
	}
	if !found {
		t.Errorf("%s does not measure without a jail: does this test look for the right names?", measuresTheJail)
	}
	for _, src := range []string{
		`package x; var c = qemu.Config{Begin: f}`, `package x; func f() { c.Begin = g }`, `package x; var f = jail.Entered`,
	} {
		s, err := parse("cmd/pagurus-agent/x.go", []byte(src))
		if err != nil || leavesJailOut(s) == nil {
			t.Errorf("%s is not found: %v", src, err)
		}
	}
}
