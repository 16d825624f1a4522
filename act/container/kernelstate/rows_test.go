package kernelstate

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "print the table of docs/moving.md again")

// The document has the table between these lines.
const (
	document = "../../../docs/moving.md"
	first    = "<!-- printed from act/container/kernelstate: go test ./act/container/kernelstate -update -->\n"
	last     = "<!-- end of the printed table -->\n"
)

func TestTableIsPrinted(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), first)
	printed, after, ends := strings.Cut(rest, last)
	if !ok || !ends {
		t.Fatalf("%s has no place for the table", document)
	}
	if *update {
		if err := os.WriteFile(document, []byte(before+first+"\n"+Table()+"\n"+last+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if printed != "\n"+Table()+"\n" {
		t.Errorf("%s has another table than the code: go test ./act/container/kernelstate -update", document)
	}
}

func TestRowsAreWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rows() {
		if r.Object == "" || r.Name == "" || r.Fate == "" || r.Case == "" {
			t.Errorf("%+v is not whole", r)
		}
		if (r.Fate != Carried) && r.Note == "" {
			t.Errorf("%s of %s is %s, and nothing says what to do", r.Name, r.Object, r.Fate)
		}
		if key := r.Object + " " + r.Name; seen[key] {
			t.Errorf("%s is there twice", key)
		} else {
			seen[key] = true
		}
	}
}
