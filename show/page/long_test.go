package page

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/wire"
	"pagurus/show/scripted"
)

// Limits of a page of many hosts, generous for a busy machine.
const (
	readyLimit  = 3 * time.Minute
	changeLimit = time.Minute
	nodesMost   = 8000 // elements of the page; all tiles would be 200,000
)

// usable logs in, and says how many milliseconds later all hosts are there and a site can be opened.
const usable = `new Promise((go) => {
	const field = document.querySelector("#token"), begun = performance.now();
	field.value = "token";
	field.form.requestSubmit();
	const look = () => document.querySelector("#glance")?.innerText.includes(%q) && document.querySelector(".site h2 button") ? go(performance.now() - begun) : requestAnimationFrame(look);
	look();
})`

// logged logs in.
func logged(t *testing.T, w *town) *testkit.Browser {
	t.Helper()
	b := testkit.Chromium(t)
	b.Visit(w.url + "/")
	b.Until(readyLimit, `document.activeElement.id === "token"`)
	b.Type("token")
	b.Press("Enter")
	return b
}

// TestLongManyHosts: with 10,000 hosts the page has only what is seen, finds a host, and shows a guest that moves.
func TestLongManyHosts(t *testing.T) {
	testkit.Root(t, "chromium")
	const hosts = 10_000
	w := newTown(t, scripted.Crowd(hosts))
	b := testkit.Chromium(t)
	b.Visit(w.url + "/")
	b.Until(readyLimit, `document.activeElement.id === "token"`)
	var ms float64
	b.Eval(fmt.Sprintf(usable, fmt.Sprintf("%d/%d", hosts, hosts)), &ms)
	t.Logf("usable %.0f ms after the login", ms)
	b.Eval(`window.slow = []; new PerformanceObserver((l) => slow.push(...l.getEntries().map((e) => e.duration))).observe({ type: "longtask" })`, nil)
	nodes := func() (n int) { b.Eval(`document.querySelectorAll("*").length`, &n); return n }
	if n := nodes(); n > nodesMost {
		t.Errorf("%d elements", n)
	}
	b.Click(".site:nth-of-type(3) h2 button") // a site is opened
	b.Until(changeLimit, `document.querySelectorAll(".tile").length > 10`)
	begun := time.Now()
	b.Click("#find")
	b.Type("host7777")
	b.Until(changeLimit, `document.querySelectorAll(".tile").length === 1 && document.querySelector('.tile[data-host="host7777"] .shell')`)
	t.Logf("found after %v", time.Since(begun))
	b.Until(changeLimit, fmt.Sprintf(`document.querySelector("#glance").innerText.includes("%d/%d")`, hosts, hosts)) // it counts all, not those found
	begun = time.Now()
	w.Change(func(s *fleet.Snapshot) {
		g := s.Guests["j1g0"]
		s.Guests["j1g0"] = fleet.Guest{ID: g.ID, Job: g.Job, Index: g.Index, Home: "host7777", State: g.State, Need: g.Need}
	})
	b.Until(changeLimit, `document.querySelectorAll('.tile[data-host="host7777"] .shell').length === 3`)
	t.Logf("seen after %v", time.Since(begun))
	b.Eval(`(() => { const f = document.querySelector("#find"); f.value = ""; f.dispatchEvent(new Event("input")); })()`, nil)
	b.Until(changeLimit, fmt.Sprintf(`document.querySelectorAll(".site").length === %d`, hosts/100))
	b.Eval(`(() => { for (const s of document.querySelectorAll('.site h2 button[aria-expanded="false"]')) s.click(); })()`, nil)
	b.Until(changeLimit, `document.documentElement.scrollHeight > 50000`)
	b.Eval(`scrollTo(0, 100000)`, nil)
	b.Until(changeLimit, `[...document.querySelectorAll(".tile")].some((t) => { const r = t.getBoundingClientRect(); return r.top > 100 && r.bottom < innerHeight; })`)
	if n := nodes(); n > nodesMost {
		t.Errorf("%d elements with all sites open", n)
	}
	begun = time.Now()
	w.Change(func(s *fleet.Snapshot) { // all hosts at once, as each second
		for id, h := range s.Hosts {
			h.Facts.LoadCPUs += 0.5
			s.Hosts[id] = h
		}
	})
	b.Until(changeLimit, `[...document.querySelectorAll(".tile .use")].every((u) => u.innerText.includes(".5/8"))`)
	t.Logf("all hosts changed after %v", time.Since(begun))
	var slow []float64
	b.Eval(`new Promise((go) => setTimeout(() => go(slow), 200))`, &slow)
	longest := 0.0
	for _, ms := range slow {
		longest = max(longest, ms)
	}
	t.Logf("%d long tasks, the longest of %.0f ms", len(slow), longest)
}

// TestLongScripts: what is called like a script is text, on each page that has it, for keyboards too.
func TestLongScripts(t *testing.T) {
	testkit.Root(t, "chromium")
	const evil = `"><script>window.owned = 1</script><img src=x onerror="window.owned = 1">`
	s := scripted.Crowd(3)
	h := s.Hosts["host1"]
	h.Facts.Troubles, h.Facts.Site, h.Facts.Owner = []string{evil}, evil, &fleet.Owner{State: fleet.OwnerPresent, Why: evil}
	s.Hosts["host1"] = h
	j := s.Jobs["j1"]
	s.Jobs["j1"] = fleet.Job{ID: j.ID, State: j.State, Cause: evil, Reason: evil, Spec: fleet.JobSpec{Args: []string{"<script>window.owned = 1</script>", evil}, Image: evil, Dir: evil}}
	w := newTown(t, s)
	b := logged(t, w)
	b.Until(readyLimit, `document.querySelectorAll(".tile").length === 3`)
	b.Eval(`location.hash = "#/job/%22%3E%3Cimg%20src=x%20onerror=window.owned=1%3E"`, nil)
	b.Until(changeLimit, `document.querySelector("#main .none")?.innerText.includes("there is no job")`)
	b.Expects = "404"
	for _, of := range []struct{ hash, says string }{{"#/jobs", "<script>"}, {"#/job/j1", "onerror="}, {"#/owners", "onerror="}, {"#/host/host1", "onerror="}} {
		b.Eval(fmt.Sprintf(`location.hash = %q`, of.hash), nil)
		b.Until(changeLimit, fmt.Sprintf(`document.querySelector("#main").innerText.includes(%q)`, of.says))
	}
	b.Click(`button[data-do="drain"]`)
	b.Until(changeLimit, `document.querySelector("dialog").open && document.querySelector("#dialog-cost").innerText.includes("Nothing would move")`)
	b.Press("Escape")
	b.Until(changeLimit, `!document.querySelector("dialog").open`)
	if asked := w.Asked(); len(asked) > 0 {
		t.Errorf("%v was asked", asked)
	}
	b.Click(`button[data-do="drain"]`)
	b.Until(changeLimit, `document.activeElement.id === "dialog-no" && document.querySelector("#dialog-yes:enabled")`)
	b.Press("Shift+Tab")
	b.Until(changeLimit, `document.activeElement.id === "dialog-yes"`)
	b.Press("Enter")
	b.Until(changeLimit, `!document.querySelector("dialog").open && document.querySelector("#news").innerText.includes("drains")`)
	if asked := w.Asked(); len(asked) != 1 || asked[0].Verb != fleet.Drain || asked[0].Host != "host1" || asked[0].ID == "" {
		t.Errorf("%+v was asked", asked)
	}
	var owned string
	if b.Eval(`String(window.owned) + document.querySelectorAll("#main script, #main img").length + document.cookie + location.href.includes("token")`, &owned); owned != "undefined0false" {
		t.Error(owned)
	}
}

// TestLongQuestions: nothing is done before its cost is shown, another choice is another request, and how a request ended is said
// whatever is open by then.
func TestLongQuestions(t *testing.T) {
	testkit.Root(t, "chromium")
	w := newTown(t, scripted.Crowd(4))
	costs, answers := make(chan struct{}), make(chan error)
	w.Foresees(func(ctx context.Context, _ fleet.Request) (fleet.Forecast, error) {
		select {
		case <-costs:
		case <-ctx.Done():
		}
		return fleet.Forecast{}, nil
	})
	w.Answers(func(ctx context.Context, _ fleet.Request) (fleet.Answer, error) {
		select {
		case err := <-answers:
			return fleet.Answer{}, err
		case <-ctx.Done():
			return fleet.Answer{}, ctx.Err()
		}
	})
	refused := &wire.Error{Status: http.StatusConflict, Reason: "there is no room"}
	b := logged(t, w)
	b.Expects = "409"
	b.Until(readyLimit, `document.querySelectorAll(".tile").length === 4`)
	b.Eval(`location.hash = "#/guest/j1g0"`, nil)
	asks := func(n int) {
		t.Helper()
		b.Click("#dialog-yes:enabled")
		testkit.Until(t, changeLimit, "the request has come", func() bool { return len(w.Asked()) == n })
	}

	b.Click(`button[data-do="migrate"]`)
	b.Until(changeLimit, `document.activeElement.id === "to" && document.querySelector("#dialog-yes:disabled")`)
	b.Press("Enter")
	costs <- struct{}{}
	b.Until(changeLimit, `document.querySelector("#dialog-yes:enabled") && document.querySelector("#dialog-cost").innerText.includes("Nothing would move")`)
	b.Type("host3")
	b.Until(changeLimit, `document.querySelector("#dialog-yes:disabled") && document.querySelector("#dialog-cost").innerText.includes("Asking")`)
	costs <- struct{}{}
	if asked := w.Asked(); len(asked) > 0 {
		t.Fatalf("%v was asked before its cost was known", asked)
	}
	asks(1)
	answers <- refused
	b.Until(changeLimit, `document.querySelector("dialog [role=alert]").innerText.includes("no room")`)
	asks(2)
	b.Click("#dialog-no")
	b.Click(`button[data-do="migrate"]`)
	b.Until(changeLimit, `document.querySelector("dialog").open && document.querySelector("#dialog-yes:disabled")`)
	answers <- nil
	b.Until(changeLimit, `document.querySelector("#news").innerText.includes("Nothing has to move") && document.querySelector("dialog").open`)
	close(costs)
	asks(3)
	answers <- refused
	b.Until(changeLimit, `document.querySelector("dialog [role=alert]").innerText.includes("no room")`)
	b.Click("#to")
	b.Type("host4")
	asks(4)
	b.Click("#dialog-no")
	answers <- refused
	b.Until(changeLimit, `document.querySelector("#news").innerText.includes("no room")`)
	asked := w.Asked()
	if asked[0].ID != asked[1].ID || asked[0].To != "host3" || asked[1].To != "host3" {
		t.Errorf("the same was asked twice as %+v", asked[:2])
	}
	if asked[2].To != "" || asked[3].To != "host4" || asked[2].ID == asked[1].ID || asked[3].ID == asked[2].ID {
		t.Errorf("what was chosen again is %+v", asked[2:])
	}

	b.Expects = "Failed to load resource"
	w.end()
	b.Until(changeLimit, `document.querySelector("#line").innerText.startsWith("not live")`)
	b.Click("#leave")
	b.Until(changeLimit, `document.querySelector("#token")`)
	var line string
	if b.Eval(`new Promise((go) => setTimeout(() => go(document.querySelector("#line").innerText), 1500))`, &line); line != "" {
		t.Errorf("who has left is told %q", line)
	}
}

// TestLongThings: what pages about a host, a job and owners say.
func TestLongThings(t *testing.T) {
	testkit.Root(t, "chromium")
	s := scripted.Crowd(4)
	now := time.Now()
	h := s.Hosts["host2"]
	h.State, h.ForOwner, h.Facts.Owner = fleet.HostDraining, true, &fleet.Owner{Present: true, State: fleet.OwnerLeaving, Since: now.Add(-5 * time.Hour), Entered: now.Add(-90 * time.Minute)}
	s.Hosts["host2"] = h
	j := s.Jobs["j1"]
	j.Traffic = []fleet.Traffic{{A: 0, B: 1, Messages: 7, Bytes: 3 << 20}}
	s.Jobs["j1"] = j
	b := logged(t, newTown(t, s))
	b.Until(readyLimit, `document.querySelectorAll(".tile").length === 4`)
	b.Eval(`location.hash = "#/host/host2"`, nil)
	b.Until(changeLimit, `document.querySelector('button[data-do="undrain"]') && document.querySelector('button[data-do="drain"]') && document.querySelector("#main").innerText.includes("leaving for 1h30m")`)
	b.Eval(`location.hash = "#/owners"`, nil)
	b.Until(changeLimit, `document.querySelector("td[data-column=For]")?.innerText === "1h30m"`)
	b.Eval(`location.hash = "#/job/j1"`, nil)
	b.Until(changeLimit, `document.querySelector("#traffic caption")?.innerText.includes("between guests") && document.querySelector("#traffic").innerText.split("3 MiB").length === 2`)
}

var update = flag.Bool("update", false, "take the picture of the owner's page in docs/figures again")

// TestLongOwner: the owner opens the link, sees guests, needs the machine for an hour, and gives it back. The address has no secret after
// that, and another tab is told to use another link.
func TestLongOwner(t *testing.T) {
	testkit.Root(t, "chromium")
	d := newDesk(t)
	b := testkit.Chromium(t)
	b.Expects = "401" // of the tab that has no key
	b.Visit(d.link)
	b.Until(readyLimit, `document.querySelector("h1")?.innerText === "office3" && document.querySelector("#status").innerText.includes("Guest j7g1") && document.querySelector("#line").innerText === "live"`)
	b.Click(`button[data-do="hour"]`)
	b.Until(changeLimit, `document.querySelector("#status").innerText.includes("is yours for") && document.querySelector('button[data-do="resume"]')`)
	if did := d.did(); len(did) != 1 || did[0].Verb != fleet.OwnerPause || did[0].For != time.Hour {
		t.Errorf("%+v", did)
	}
	png := b.Picture()
	if len(png) < 1000 {
		t.Error("the picture is empty")
	}
	if *update {
		if err := os.WriteFile("../../docs/figures/page-owner.png", png, 0o644); err != nil {
			t.Error(err)
		}
	}
	b.Visit(d.url + "/") // the tab keeps its key
	b.Until(readyLimit, `document.querySelector('button[data-do="resume"]')`)
	b.Click(`button[data-do="resume"]`)
	b.Until(changeLimit, `document.querySelector("#status").innerText.includes("You count as away")`)
	if did := d.did(); len(did) != 1 || did[0].Verb != fleet.OwnerResume {
		t.Errorf("%+v", did)
	}
	var said string
	if b.Eval(`location.hash + document.cookie`, &said); said != "" {
		t.Errorf("the address and cookies have %q", said)
	}
	b.Eval(`sessionStorage.clear()`, nil)
	b.Visit(d.link)
	b.Eval(`location.reload()`, nil)
	b.Until(changeLimit, `document.querySelector("[role=alert]")?.innerText.includes("pagurus owner page")`)
}
