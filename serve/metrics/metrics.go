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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pagurus/decide/measures"
)

// Path is where monitoring reads.
const Path = "/metrics"

// Limits of the server: who reads may be anybody.
const (
	headerLimit = 5 * time.Second
	writeLimit  = 30 * time.Second
	idleLimit   = 2 * time.Minute
	headerBytes = 8 << 10
	atOnce      = 4 // who reads; more are told to come again
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

// Serve answers at Path until ctx ends, then closes the listener. What cannot be shown is left out, and the log says why.
func Serve(ctx context.Context, l net.Listener, from prometheus.Gatherer, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: atOnce, Timeout: writeLimit,
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, Path, http.StatusFound) })
	h := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerLimit, ReadTimeout: headerLimit, WriteTimeout: writeLimit, IdleTimeout: idleLimit, MaxHeaderBytes: headerBytes,
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
