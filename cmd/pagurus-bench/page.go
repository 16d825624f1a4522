package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/bench/stats"
	"pagurus/fleet"
	"pagurus/internal/chromium"
	"pagurus/serve/wire"
)

// A crowd of hosts is looked at by many pages. Hosts are sessions of their own on the controller's socket, as a lab's agents are, and
// say their facts so often that none counts as silent; of a few each time the load is another. Pages are connections of their own with
// TLS, which read the events that the page reads, compressed as for a browser.
const (
	viewedSites    = 100
	viewedReports  = 8 * time.Second
	viewedLoads    = 50 // of so many reports one has another load
	viewersAtOnce  = 16
	viewersWhole   = 100 // watchers that unpack all: in truth each does it on a machine of its own
	viewedTries    = 20
	viewedWindow   = 10 * time.Second
	viewedChange   = 500 * time.Millisecond // between two drains, or their ends, that watchers wait for
	viewedLimit    = 30 * time.Minute
	eventsPath     = "/api/v1/events?brief=true&kinds=host,guest,job,move,policy"
	usableExpected = 2 * time.Minute
)

// pageView is one run: the controller, and who looks at it.
type pageView struct {
	viewers int
	address string // of the interface
	token   string
	pid     int
	client  *http.Client
	first   atomic.Int64 // bytes that the first watcher had when it was ready

	mu    sync.Mutex
	waits string        // the row that watchers wait for
	since time.Time     // when it was asked for
	took  []float64     // seconds until each watcher had it
	all   chan struct{} // closed when every one has
}

// whole is how many watchers unpack what they get, and say when they know of a change.
func (v *pageView) whole() int { return min(v.viewers, viewersWhole) }

// page measures the controller with a crowd of hosts and many watchers, and the page in a browser.
func (b *experiments) page(ctx context.Context) (err error) {
	v, facts, err := b.viewed(ctx)
	if err != nil {
		return err
	}
	crowd, stop := context.WithCancel(ctx)
	reporting, sessions := errgroup.WithContext(crowd)
	defer func() {
		stop()
		if e := reporting.Wait(); !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	joining, joins := errgroup.WithContext(ctx)
	joining.SetLimit(crowdAtOnce)
	begun := time.Now()
	for n := range b.viewedHosts {
		joining.Go(func() error {
			joins, cancel := context.WithTimeout(joins, viewedLimit)
			defer cancel()
			m, err := attachViewed(joins, n, facts)
			for try := 1; err != nil && try < viewedTries && joins.Err() == nil; try++ { // of a busy machine
				m, err = attachViewed(joins, n, facts)
			}
			if err != nil {
				return fmt.Errorf("host %d of the crowd: %w", n, err)
			}
			reporting.Go(func() error { return m.reportLoads(sessions) })
			return nil
		})
	}
	if err := joining.Wait(); err != nil {
		return err
	}
	fmt.Printf("%d hosts attached in %.0f s\n", b.viewedHosts, time.Since(begun).Seconds())
	err = b.InTurn(sessions, nil, bench.Arm{Name: "page", Measure: func(ctx context.Context) (map[string]float64, error) { return b.lookAt(ctx, v) }})
	if err != nil {
		return errors.Join(err, context.Cause(sessions))
	}
	return b.pageFigures()
}

// viewed finds the controller of the lab, and makes a token for it.
func (b *experiments) viewed(ctx context.Context) (*pageView, fleet.Facts, error) {
	s, err := b.Snapshot(ctx)
	if err != nil {
		return nil, fleet.Facts{}, err
	}
	status, err := b.Type(ctx, "lab", "status", "--json")
	if err != nil {
		return nil, fleet.Facts{}, err
	}
	v := &pageView{viewers: b.viewers}
	if v.pid, v.address, err = partOf([]byte(status), "controller"); err != nil {
		return nil, fleet.Facts{}, err
	}
	if _, err := b.Type(ctx, "user", "add", "viewer", "--admin", "--uid", "4711", "--gid", "4711"); err != nil {
		return nil, fleet.Facts{}, err
	}
	token, err := b.Type(ctx, "token", "create", "--access", "--role", "admin", "--user", "viewer")
	if err != nil {
		return nil, fleet.Facts{}, err
	}
	v.token = strings.TrimSpace(token)
	v.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, // of the lab on this machine
		MaxIdleConnsPerHost: 4, DisableCompression: true,
	}}
	return v, s.Hosts["host1"].Facts, nil
}

// attachViewed attaches a host of the crowd.
func attachViewed(ctx context.Context, n int, facts fleet.Facts) (crowdMember, error) {
	at, err := wire.Resolve(wire.Config{}, wire.UserCredentials())
	if err != nil {
		return crowdMember{}, err
	}
	client, err := wire.Dial(at)
	if err != nil {
		return crowdMember{}, err
	}
	facts.Machine, facts.Site = fmt.Sprintf("%032x", n+1), fmt.Sprintf("site%d", n%viewedSites+1)
	facts.Address = fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)
	facts.Guests, facts.WireGuard, facts.Vault = nil, nil, nil
	s, err := client.Attach(ctx, wire.Hello{Host: viewedHost(n), Facts: facts})
	return crowdMember{s, facts}, err
}

func viewedHost(n int) fleet.HostID { return fleet.HostID(fmt.Sprintf("crowd%d", n)) }

// reportLoads sends facts until the end of ctx.
func (m crowdMember) reportLoads(ctx context.Context) error {
	defer m.session.Close()
	go func() { // what is wanted there is read, and there is nothing to do
		for _, err := m.session.Receive(ctx); err == nil; _, err = m.session.Receive(ctx) {
		}
	}()
	tick := time.NewTicker(viewedReports)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if rand.IntN(viewedLoads) == 0 {
				m.facts.LoadCPUs = rand.Float64() * float64(m.facts.Capacity.CPUs)
			}
			if err := m.session.Send(ctx, wire.Up{Facts: &m.facts}); err != nil {
				return err
			}
		}
	}
}

// lookAt measures once: without watchers, with them, and in a browser beside them.
func (b *experiments) lookAt(ctx context.Context, v *pageView) (map[string]float64, error) {
	out := map[string]float64{}
	if err := b.cost(ctx, v, out, "alone"); err != nil {
		return nil, err
	}
	v.mu.Lock()
	v.waits, v.took = "", nil
	v.mu.Unlock()
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stop()
	begun, ready, failed := time.Now(), make(chan struct{}, v.viewers), make(chan error, v.viewers)
	v.first.Store(0)
	turn := make(chan struct{}, viewersAtOnce)
	for n := range v.viewers {
		turn <- struct{}{} // here, so that the first are whole: the others wait for one
		watchers.Go(func() {
			leave := sync.OnceFunc(func() { <-turn })
			defer leave()
			err := v.watch(watching, n < v.whole(), func(bytes int64) {
				v.first.CompareAndSwap(0, bytes)
				leave()
				ready <- struct{}{}
			})
			if watching.Err() == nil {
				failed <- fmt.Errorf("a watcher ended: %w", err)
			}
		})
	}
	for range v.viewers {
		select {
		case <-ready:
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	out["all_ready_s"], out["first_kib"] = time.Since(begun).Seconds(), float64(v.first.Load())/1024
	if err := b.cost(ctx, v, out, "watched"); err != nil {
		return nil, err
	}
	slices.Sort(v.took)
	if len(v.took) == 0 {
		return nil, errors.New("no watcher was told of any change")
	}
	out["delay_median_s"], out["delay_p99_s"] = v.took[len(v.took)/2], v.took[len(v.took)*99/100]
	v.took = nil
	usable, err := b.usable(ctx, v)
	out["usable_s"] = usable.Seconds()
	select {
	case e := <-failed:
		err = errors.Join(err, e)
	default:
	}
	return out, err
}

// cost measures the controller for some time in which hosts are drained, and their drains end.
func (b *experiments) cost(ctx context.Context, v *pageView, out map[string]float64, name string) error {
	before, err := cpuTime(statOf(v.pid))
	if err != nil {
		return err
	}
	begun := time.Now()
	for i := 0; time.Since(begun) < viewedWindow; i++ {
		next := time.Now().Add(viewedChange)
		if err := v.change(ctx, i/2, i%2 == 0, name == "watched"); err != nil {
			return err
		}
		if err := drive.Pause(ctx, time.Until(next)); err != nil {
			return err
		}
	}
	after, err1 := cpuTime(statOf(v.pid))
	out[name+"_cpu_percent"] = 100 * (after - before).Seconds() / time.Since(begun).Seconds()
	mib, err2 := largest(v.pid)
	out[name+"_mib"] = mib
	return errors.Join(err1, err2)
}

// change drains a host or ends that, and waits until all watchers know.
func (v *pageView) change(ctx context.Context, n int, drain, watched bool) error {
	what, state := "drain", "draining"
	if !drain {
		what, state = "undrain", "up"
	}
	host := viewedHost(n)
	v.mu.Lock()
	v.waits, v.since, v.all = fmt.Sprintf(`{"id":%q,"state":%q`, host, state), time.Now(), make(chan struct{})
	all, had := v.all, len(v.took)
	v.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+v.address+"/api/v1/hosts/"+url.PathEscape(string(host))+"/"+what, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+v.token)
	answer, err := v.client.Do(r)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s", what, host, answer.Status)
	}
	if !watched {
		return nil
	}
	select {
	case <-all:
		return nil
	case <-time.After(time.Minute):
		v.mu.Lock()
		defer v.mu.Unlock()
		return fmt.Errorf("%d of %d watchers know of the %s of %s after a minute", len(v.took)-had, v.whole(), what, host)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch is one watcher. ready is called when it has everything, with the bytes that this took. If it is not whole, it takes what comes
// and does not unpack it.
func (v *pageView) watch(ctx context.Context, whole bool, ready func(int64)) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+v.address+eventsPath, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+v.token)
	r.Header.Set("Accept-Encoding", "gzip")
	answer, err := v.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	counted := &countedReader{from: answer.Body}
	if !whole {
		return v.skim(counted, ready)
	}
	unpacked, err := gzip.NewReader(counted)
	if err != nil {
		return err
	}
	in, told := bufio.NewReaderSize(unpacked, 4<<10), ""
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		switch {
		case line == "event: ready\n":
			ready(counted.n)
		case strings.HasPrefix(line, "data: {\"") && len(line) < 1<<20:
			told = v.heard(line, told)
		}
	}
}

// skim reads what a watcher gets. It counts as ready when it has as many bytes as the first one that unpacked them.
func (v *pageView) skim(in *countedReader, ready func(int64)) error {
	buffer := make([]byte, 16<<10)
	for told := false; ; {
		if _, err := in.Read(buffer); err != nil {
			return err
		}
		if first := v.first.Load(); !told && first > 0 && in.n >= first {
			told = true
			ready(in.n)
		}
	}
}

// heard notes when a watcher knows what is waited for, once.
func (v *pageView) heard(line, told string) string {
	v.mu.Lock()
	waits := v.waits
	v.mu.Unlock()
	if waits == "" || waits == told || !strings.Contains(line, waits) {
		return told
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.waits == waits {
		v.took = append(v.took, time.Since(v.since).Seconds())
		if len(v.took)%v.whole() == 0 {
			close(v.all)
		}
	}
	return waits
}

type countedReader struct {
	from interface{ Read([]byte) (int, error) }
	n    int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

// inBrowser types a token, and says how many milliseconds later the page shows all hosts and can be used.
const inBrowser = `new Promise((go) => {
	const field = document.querySelector("#token");
	field.value = %q;
	const begun = performance.now();
	field.form.requestSubmit();
	const look = () => document.querySelector("#line .good") && document.querySelector("#glance")?.innerText.includes("/%d") && document.querySelector(".site h2 button") ? go(performance.now() - begun) : requestAnimationFrame(look);
	look();
})`

// usable is how long it takes from a login until the page can be used, in a real browser.
func (b *experiments) usable(ctx context.Context, v *pageView) (time.Duration, error) {
	runs, err := chromium.Start(filepath.Join(b.Dir, "chromium"))
	if err != nil {
		return 0, err
	}
	defer runs.Close()
	if err := runs.Ask("Page.navigate", map[string]any{"url": "https://" + v.address + "/"}, nil); err != nil {
		return 0, err
	}
	for end := time.Now().Add(usableExpected); ; {
		var there bool
		if err := runs.Evaluate(`document.activeElement?.id === "token"`, &there); err == nil && there {
			break
		}
		if time.Now().After(end) {
			return 0, errors.New("the page does not ask for a token")
		}
		if err := drive.Pause(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
	var ms float64
	err = runs.Evaluate(fmt.Sprintf(inBrowser, v.token, b.viewedHosts+1), &ms)
	return time.Duration(ms * float64(time.Millisecond)), err
}

func (b *experiments) pageFigures() error {
	if err := b.Mean(fmt.Sprintf("seconds until the page can be used, %d hosts", b.viewedHosts), "page_usable_s", 1); err != nil {
		return err
	}
	for _, f := range []string{"alone_cpu_percent", "watched_cpu_percent", "alone_mib", "watched_mib", "delay_median_s", "delay_p99_s", "all_ready_s", "first_kib"} {
		name := fmt.Sprintf("%s, %d watchers of %d hosts", f, b.viewers, b.viewedHosts)
		m, err := stats.Mean(b.Samples("page_"+f), bench.Confidence)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b.Record.Promised[name] = bench.Promise{Interval: m}
		fmt.Printf("%-52s %s\n", name, m)
	}
	return nil
}
