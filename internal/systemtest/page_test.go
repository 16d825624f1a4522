package systemtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

var update = flag.Bool("update", false, "take the pictures of the page in docs/figures again")

const (
	pageLimit = 3 * time.Minute // for what a busy machine has to show
	pageLag   = 5 * time.Second // by which the page may be behind what commands say
	pageURL   = "https://198.18.0.254:7461/"
	evilName  = `<script>window.owned = 1</script><img src=x onerror="window.owned = 1">`
)

// picture takes a picture of the page, or with -update keeps it.
func picture(t *testing.T, b *testkit.Browser, name string) {
	t.Helper()
	png := b.Picture()
	if len(png) < 1000 {
		t.Errorf("%s is empty", name)
	}
	if *update {
		if err := os.WriteFile(filepath.Join("../../docs/figures", name+".png"), png, 0o644); err != nil {
			t.Error(err)
		}
	}
}

// asked is what a command prints as JSON.
func asked(t *testing.T, out any, args ...string) {
	t.Helper()
	text, err := exec.Command(filepath.Join(bin(t), "pagurus"), append(args, "--json")...).Output()
	if err != nil {
		t.Fatalf("pagurus %v: %v", args, err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("pagurus %v: %v: %s", args, err, text)
	}
}

// homes are the hosts of the guests that run.
func homes(t *testing.T) string {
	t.Helper()
	var all []fleet.Guest
	asked(t, &all, "guest", "ls")
	var out []string
	for _, g := range all {
		if !g.State.Ended() {
			out = append(out, fmt.Sprintf("%s@%s", g.ID, g.Home))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// shown are the hosts under which the page has the guests' shells.
const shown = `[...document.querySelectorAll(".tile .shell:not(.ghost)")].map((s) => s.dataset.guest + "@" + s.closest(".tile").dataset.host).sort().join(" ")`

// TestLongPage does in a real browser what a person does, with real guests: logs in, finds a host, drains it, sees the guest's shell under
// another host, moves it back and cancels its job. All the while the page has to show what commands say.
func TestLongPage(t *testing.T) {
	alone(t)
	pagurus(t, "lab", "up", "--hosts", "3", "--encryption", "none")
	dir := t.TempDir()
	run := func(args ...string) string {
		cmd := exec.Command(filepath.Join(bin(t), "pagurus"), args...)
		cmd.Dir = dir
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("pagurus %v: %v: %s", args, err, &said)
		}
		return strings.TrimSpace(string(out))
	}
	text, err := os.ReadFile(witness())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "witness.c"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	run("image", "shell", "openmpi", "--", "mpicc", "-O1", "-o", "witness", "witness.c")
	job := run("run", "--detach", "--kind", "container", "-n", "4", "--guests", "2", "--mem", "256M", "--on", "host1,host2", "--", "./witness", "900", "8", "20000", "stop")
	evil := run("run", "--detach", "--kind", "container", "-n", "1", "--mem", "64M", "--on", "host3", "--", "sh", "-c", "sleep 900", evilName)
	run("user", "add", "ada", "--admin", "--uid", "1000", "--gid", "1000")
	var found struct {
		Addresses []string
		Token     string
	}
	if asked(t, &found, "page", "--role", "admin", "--user", "ada"); !slices.Contains(found.Addresses, pageURL) {
		t.Errorf("the page is not at %q", found.Addresses)
	}
	token := found.Token

	b := testkit.Chromium(t)
	b.Expects = "401" // of the token that is none
	b.Visit(pageURL)
	b.Until(pageLimit, `document.activeElement.id === "token"`)
	b.Type("a.b.c")
	b.Press("Enter")
	b.Until(pageLimit, `document.querySelector("[role=alert]").innerText !== ""`)
	b.Click("#token")
	b.Eval(`document.querySelector("#token").value = ""`, nil)
	b.Type(token)
	b.Press("Enter")
	b.Until(pageLimit, `document.querySelectorAll(".tile").length === 3 && document.querySelector("#line").innerText === "live"`)
	testkit.Until(t, pageLimit, "the job has begun", func() bool { return strings.Contains(run("logs", job), "START") })
	b.Until(pageLimit, `document.querySelectorAll(".shell:not(.ghost)").length === 3`)
	agrees(t, b)

	drains(t, b, job)
	predicted(t, b, job)
	looksRight(t, b, job, evil)
	cancels(t, b, evil)
	ends(t, b, token)
}

// agrees waits until the page shows what commands say.
func agrees(t *testing.T, b *testkit.Browser) {
	t.Helper()
	var page, said string
	for end := time.Now().Add(pageLimit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		said = homes(t)
		if b.Eval(shown, &page); page == said {
			return
		}
	}
	t.Fatalf("the page shows %q, commands say %q", page, said)
}

// drains finds host1, drains it by the keyboard, and sees the shell leave for where commands say.
func drains(t *testing.T, b *testkit.Browser, job string) {
	guest := job + "g0"
	b.Click("#find")
	b.Type("host1")
	b.Until(pageLimit, `document.querySelectorAll(".tile").length === 1`)
	b.Click(`.tile[data-host="host1"] .tile-name`)
	b.Until(pageLimit, `location.hash === "#/host/host1"`)
	b.Click(`button[data-do="drain"]`)
	b.Until(pageLimit, fmt.Sprintf(`document.querySelector("#dialog-cost").innerText.includes(%q) && document.querySelector("#dialog-cost").innerText.includes("nine of ten")`, guest))
	seen := []string{homes(t)} // the page may show this after the guest has left, which takes less than a command
	agree(b)
	b.Click(`nav a[href="#/"]`)
	last := time.Now()
	for end := time.Now().Add(pageLimit); ; time.Sleep(20 * time.Millisecond) {
		var page string
		seen = append(seen, homes(t))
		b.Eval(shown, &page)
		if now := homes(t); now != seen[len(seen)-1] {
			seen = append(seen, now)
		}
		if slices.Contains(seen[max(0, len(seen)-2):], page) {
			last = time.Now()
		} else if page == "" || !slices.Contains(seen, page) || time.Since(last) > pageLag {
			t.Fatalf("the page shows %q, and commands said %q", page, seen[max(0, len(seen)-3):])
		}
		if !strings.Contains(page, "@host1") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("host1 is not empty: %q", page)
		}
	}
	agrees(t, b)
	b.Until(pageLimit, fmt.Sprintf(`document.querySelector("#news").innerText.includes(%q) || document.querySelector("#glance").innerText.includes("draining")`, guest))
	picture(t, b, "page-cluster")
	b.Click(`.tile[data-host="host1"] .tile-name`)
	b.Click(`button[data-do="undrain"]`)
	agree(b)
	b.Until(pageLimit, `document.querySelector('button[data-do="drain"]')`)
}

// agree goes by the keyboard from the button that does nothing, which has the focus, to the one that acts, which has to wait for the cost.
func agree(b *testkit.Browser) {
	b.Until(pageLimit, `document.querySelector("dialog").open && document.activeElement.id === "dialog-no" && document.querySelector("#dialog-yes:enabled")`)
	b.Press("Shift+Tab")
	b.Until(pageLimit, `document.activeElement.id === "dialog-yes"`)
	b.Press("Enter")
	b.Until(pageLimit, `!document.querySelector("dialog").open`)
}

// predicted moves a guest back to host1, and compares what the page says of it with the command.
func predicted(t *testing.T, b *testkit.Browser, job string) {
	guest := job + "g0"
	b.Eval(fmt.Sprintf(`location.hash = "#/guest/%s"`, guest), nil)
	b.Click(`button[data-do="migrate"]`)
	b.Until(pageLimit, `document.activeElement.id === "to"`)
	b.Type("host1")
	b.Until(pageLimit, `document.querySelector("#dialog-yes:enabled") && document.querySelector("#to").value === "host1" && document.querySelector("#dialog-cost td[data-column=To]")?.innerText === "host1"`)
	b.Eval(`document.querySelector("#news").replaceChildren()`, nil) // what was said before
	b.Click("#dialog-yes")
	b.Until(pageLimit, `document.querySelector("#news a")`)
	var id string
	b.Eval(`document.querySelector("#news a").innerText`, &id)
	var m struct {
		Parts []fleet.Migration `json:"parts"`
	}
	testkit.Until(t, pageLimit, "the guest has moved", func() bool {
		asked(t, &m, "move", "show", id)
		return len(m.Parts) == 1 && m.Parts[0].Phase.Ended()
	})
	if p := m.Parts[0]; p.Phase != fleet.Finished || p.Predicted == nil {
		t.Fatalf("%+v", p)
	}
	b.Eval(fmt.Sprintf(`location.hash = "#/move/%s"`, id), nil)
	said := regexp.MustCompile(`moved in (.+), downtime (.+), (.+) sent`).FindStringSubmatch(pagurus(t, "move", "explain", id))
	if said == nil {
		t.Fatalf("the command says nothing of %s", id)
	}
	for i, column := range []string{"Downtime", "Sent"} {
		b.Until(pageLimit, fmt.Sprintf(`document.querySelector("td[data-column=%s]")?.innerText.startsWith(%q)`, column, said[i+2]))
	}
	b.Until(pageLimit, fmt.Sprintf(`document.querySelector("td[data-column=Downtime]")?.innerText.startsWith(%q) && document.querySelector("td[data-column=Downtime]").innerText.includes("predicted")`, said[2]))
	b.Eval(`location.hash = "#/"`, nil)
	agrees(t, b)
}

// looksRight looks at the pages of jobs, on a phone and in the dark too.
func looksRight(t *testing.T, b *testkit.Browser, job, evil string) {
	b.Eval(fmt.Sprintf(`location.hash = "#/job/%s"`, job), nil)
	b.Until(pageLimit, `document.querySelector("#traffic td[data-heat='8']") && document.querySelector("td[data-column=Stall] b")`)
	b.Prefers("prefers-color-scheme", "dark")
	picture(t, b, "page-job")
	b.Resize(390, 700)
	b.Until(pageLimit, `document.documentElement.scrollWidth <= 390`)
	b.Eval(`location.hash = "#/"`, nil)
	b.Until(pageLimit, `document.querySelectorAll(".tile").length === 3 && document.documentElement.scrollWidth <= 390`)
	picture(t, b, "page-phone")
	b.Resize(1000, 640)
	b.Prefers("prefers-color-scheme", "light")
	for _, hash := range []string{"#/jobs", "#/job/" + evil} {
		b.Eval(fmt.Sprintf(`location.hash = %q`, hash), nil)
		b.Until(pageLimit, `document.querySelector("#main").innerText.includes("<script>window.owned = 1</script>")`)
	}
	var owned string
	if b.Eval(`String(window.owned) + document.cookie + location.href.includes("token")`, &owned); owned != "undefinedfalse" {
		t.Error(owned)
	}
}

// cancels cancels a job, for which the button that does it has to be chosen.
func cancels(t *testing.T, b *testkit.Browser, job string) {
	b.Click(`button[data-do="cancelJob"]`)
	b.Until(pageLimit, `document.querySelector("#dialog-cost").innerText.includes("is lost")`)
	b.Press("Enter") // does nothing
	b.Until(pageLimit, `!document.querySelector("dialog").open`)
	b.Click(`button[data-do="cancelJob"]`)
	b.Until(pageLimit, `document.querySelector("dialog").open`)
	b.Click("#dialog-yes:enabled")
	b.Until(pageLimit, `document.querySelector("#main").innerText.includes("ended: cancelled")`)
	var j fleet.Job
	if asked(t, &j, "job", "show", job); j.State != fleet.JobEnded {
		t.Errorf("%s is %s", job, j.State)
	}
}

// ends kills the controller, which the page has to say, and removes the token, after which it shows nothing.
func ends(t *testing.T, b *testkit.Browser, token string) {
	b.Expects = "" // what breaks is told as errors of the network
	b.Eval(`location.hash = "#/"`, nil)
	pagurus(t, "lab", "kill", "controller")
	b.Until(pageLimit, `document.querySelector("#line").innerText.startsWith("not live")`)
	pagurus(t, "lab", "restart", "controller")
	b.Until(pageLimit, `document.querySelector("#line").innerText === "live"`)
	agrees(t, b)
	pagurus(t, "token", "rm", strings.Split(token, ".")[0])
	b.Until(pageLimit, `document.querySelector("#token") && !document.querySelector(".tile")`)
	b.Expects = "Failed to load resource"
}
