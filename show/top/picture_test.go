package top

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"pagurus/fleet"
)

var update = flag.Bool("update", false, "print the screens in docs/top.md again")

// TestPicture: the screens in docs/top.md are what people see.
func TestPicture(t *testing.T) {
	const file = "../../docs/top.md"
	m, _ := New(false).Update(tea.WindowSizeMsg{Width: 110, Height: 15})
	m, _ = m.Update(Arrive(cluster("")))
	drain, effect := press(m, "d")
	p := forecast("j1g0")
	p.Migrations[0].To, p.Migrations[0].Prediction.Basis = "host10", "moves before"
	p.Migrations[0].Prediction.Total = fleet.Range[time.Duration]{Low: 1500 * time.Millisecond, Value: 2200 * time.Millisecond, High: 4100 * time.Millisecond}
	p.Migrations[0].Prediction.Bytes = fleet.Range[int64]{Low: 90 << 20, Value: 110 << 20, High: 160 << 20}
	drain, _ = drain.Update(Foreseen{Number: effect.(Predict).Number, Forecast: p})
	screens := map[string]string{"hosts": asText(m), "drain": asText(drain), "keys": strings.Join(helpLines, "\n")}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile("(?s)<!-- screen: (\\w+) -->\n```\n(.*?)```\n")
	now := said.ReplaceAllStringFunc(string(text), func(old string) string {
		name := said.FindStringSubmatch(old)[1]
		is := screens[name]
		delete(screens, name)
		return "<!-- screen: " + name + " -->\n```\n" + is + "\n```\n"
	})
	if len(screens) > 0 {
		t.Errorf("%s has no place for %v", file, screens)
	}
	if *update {
		if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if now != string(text) {
		t.Errorf("%s is not what people see: print it again with -update; it should be\n%s", file, now)
	}
}

// asText is a screen as text.
func asText(m Model) string {
	var lines []string
	for line := range strings.SplitSeq(ansi.Strip(m.View()), "\n") {
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
