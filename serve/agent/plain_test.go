package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Whatever an error of a container's move says, people read no words of CRIU, no file of the agent or the kernel, and no
// number of a process of the host: for each message that the drivers' code can make, with all of that in it.
func TestErrorsAreForPeople(t *testing.T) {
	raw := regexp.MustCompile(`criu/|Error \(|/proc/\d|/sys/fs|/run/pagurus|/var/lib/pagurus`)
	hostNumber := regexp.MustCompile(`31337( in the container)?`)
	number := regexp.MustCompile(`\b(process|thread|task|pid|PID) %[dv]`)
	verb := regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)
	causes := []string{
		"open /proc/31337/maps: no such process", "write /sys/fs/cgroup/freezer/pagurus/j1g0/freezer.state: device or resource busy",
		"open /run/pagurus/agent/guests/j1g0/images/pages-1.img: no space left on device", "rename /var/lib/pagurus/a/b /var/lib/pagurus/c: I/O error",
		"criu says: Error (criu/files.c:12): Can't dump file 5 of 31337: criu/x", "readlink /proc/31337: permission denied", "/proc/self/fd/9 is gone",
	}
	n := 0
	for _, root := range []string{"../../act/container", "."} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				format, ok := message(node)
				if !ok {
					return true
				}
				n++
				format = number.ReplaceAllString(format, "$1 31337")
				for _, cause := range causes {
					text := verb.ReplaceAllStringFunc(format, func(v string) string {
						if v[len(v)-1] == 'd' || v[len(v)-1] == 'x' {
							return "5"
						}
						return cause
					})
					got := plain(text)
					if raw.MatchString(got) {
						t.Errorf("%s: %q is said as %q", path, text, got)
					}
					for _, m := range hostNumber.FindAllString(got, -1) {
						if m == "31337" {
							t.Errorf("%s: %q is said as %q", path, text, got)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 500 {
		t.Errorf("only %d messages were found", n)
	}
}

// message is the text of an error, or its format.
func message(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return "", false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Errorf" && f.Sel.Name != "New" {
		return "", false
	}
	text, ok := call.Args[0].(*ast.BasicLit)
	if !ok || text.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(text.Value)
	return s, err == nil
}

// What a user can use stays.
func TestPlainKeepsWhatHelps(t *testing.T) {
	for _, s := range []string{
		"python3 (process 7 in the container) has /home/ada/x open, which was removed: let it close the file",
		"chgrp pagurus /dev/userfaultfd && chmod 660 /dev/userfaultfd", "there is no room in /var/lib/pagurus: make some",
		"descriptor 5 of process 7 in the container: permission denied", "host2 has 3 processes too many",
		"open /scratch/ada/proc/0/out: no such file or directory", "mkdir /data/run/pagurus/results/x: file exists",
	} {
		if got := plain(s); got != s {
			t.Errorf("%q becomes %q", s, got)
		}
	}
	if got, want := plain(`open "/run/pagurus/agent/x": gone`), `open "a file of the agent": gone`; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	if got, want := plain("dump process 4711: read /proc/4711/maps: no such process"), "dump a process: read the kernel's file of a process: no such process"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}
