// Package metrics shows numbers to monitoring, in the form that Prometheus reads, at /metrics of an
// address of its own.
//
// It must not know what the numbers mean: package decide/measures says what there is of a cluster or a host. Whoever
// reaches the address may read them; nothing can be changed there. Its tests read it over real sockets and have
// Prometheus's own linter look at all names.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pagurus/decide/measures"
	"pagurus/serve/wire"
)

// Path is where monitoring reads.
const Path = "/metrics"

// Limits of the server: who reads may be anybody.
const (
	headerLimit = 5 * time.Second
	writeLimit  = 30 * time.Second
	idleLimit   = 2 * time.Minute
	headerBytes = 8 << 10
	readersMost = 8  // then the one that has read for longest is cut off
	atOnce      = 64 // whose answer is made; more are told to come again
	farewell    = time.Second
)

// Source gives the numbers of this moment.
type Source func() []measures.Family

// collector is a Source as Prometheus's library takes it. What it has is not the same each time, so it describes nothing.
type collector struct{ source Source }

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(to chan<- prometheus.Metric) {
	for _, f := range c.source() {
		desc, kind := prometheus.NewDesc(f.Name, f.Help, f.Labels, nil), prometheus.GaugeValue
		if f.Counter {
			kind = prometheus.CounterValue
		}
		for _, p := range f.Points {
			m, err := prometheus.NewConstMetric(desc, kind, p.Value, p.Labels...)
			if err != nil { // a name that is not UTF-8
				m = prometheus.NewInvalidMetric(desc, err)
			}
			to <- m
		}
	}
}

// New makes a registry with what every program shows of itself, and a Source.
func New(version string, source Source) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pagurus_build_info", Help: "The version of this program; always 1."}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{source})
	return r
}

// Listen opens an address for monitoring, of TCP.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for monitoring on %s: %w", address, err)
	}
	return l, nil
}

// Serve answers at Path until ctx ends, then closes the listener. address is where it listens, as it was given to Listen. What cannot be shown is left out, and the log says why.
func Serve(ctx context.Context, l net.Listener, address string, from prometheus.Gatherer, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, new(readers).each(promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: atOnce, Timeout: writeLimit,
	})))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, Path, http.StatusFound) })
	h := &http.Server{
		Handler: forNames(names(address, resolver), mux), ReadHeaderTimeout: headerLimit, ReadTimeout: headerLimit, WriteTimeout: writeLimit, IdleTimeout: idleLimit, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		if h.Shutdown(ending) != nil {
			h.Close()
		}
	})
	defer stop()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving monitoring on %s: %w", l.Addr(), err)
	}
	return nil
}

// resolver is where this machine's domains are, resolv.conf(5).
const resolver = "/etc/resolv.conf"

// names are those by which this machine may be called here, beside its IP addresses: its own, also in the domains in which it looks names up, and the one
// that it was told to listen at.
func names(address, resolver string) []string {
	out := []string{"localhost"}
	if here, err := os.Hostname(); err == nil {
		out = append(out, here)
		for _, domain := range domains(resolver) {
			out = append(out, here+"."+domain)
		}
	}
	if host, _, err := net.SplitHostPort(address); err == nil {
		out = append(out, host)
	}
	return out
}

// domains are those in which a machine looks names up; none if nobody can tell.
func domains(resolver string) (out []string) {
	text, _ := os.ReadFile(resolver)
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && (words[0] == "search" || words[0] == "domain") {
			for _, domain := range words[1:] {
				if domain = strings.Trim(domain, "."); domain != "" {
					out = append(out, domain)
				}
			}
		}
	}
	return out
}

// forNames refuses requests to a name of somebody else. A browser that was led here by another site's name would read this for that site
// (DNS rebinding).
func forNames(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !wire.IsCalled(r.Host, names) {
			http.Error(w, "this machine is not called so here: ask for it by its IP address or its name, or give that name to --metrics", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// readers are who is answered. A reader takes a moment, unless it is to keep others out.
type readers struct {
	mu  sync.Mutex
	all []*http.ResponseController // the one that began first is the first
}

// each cuts the reader off that began first, when there are too many.
func (o *readers) each(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := http.NewResponseController(w)
		o.mu.Lock()
		if o.all = append(o.all, out); len(o.all) > readersMost {
			_ = o.all[0].SetWriteDeadline(time.Now()) // it is here until its handler returns, and its connection can do that
			o.all = o.all[1:]
		}
		o.mu.Unlock()
		defer func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.all = slices.DeleteFunc(o.all, func(is *http.ResponseController) bool { return is == out })
		}()
		next.ServeHTTP(w, r)
	})
}
