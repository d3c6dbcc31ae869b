package serve

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/router"
)

// metrics is an Observer that counts for Prometheus. It outlives the routers that
// it observes: a reload begins no counter anew.
type metrics struct {
	router.NopObserver
	registry *prometheus.Registry

	retried, parked, discarded, held *prometheus.CounterVec
	reconnects, reloads              *prometheus.CounterVec
	undecodable                      prometheus.Counter
	handoff                          *prometheus.HistogramVec
	blocked                          prometheus.Gauge
}

var _ router.Observer = (*metrics)(nil)

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "hopback", Subsystem: "router", Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	m.retried = counter("retried_total", "Messages that are safe in a delay slot, by work queue and by who chose the delay: the policy (error) or the consumer (retry-after).", "queue", "reason")
	m.parked = counter("parked_total", "Messages that are safe in a parking queue, by work queue (empty where no route takes it) and reason.", "queue", "reason")
	m.discarded = counter("discarded_total", "Messages that were dropped because their consumer asked for it.", "queue")
	m.held = counter("held_total", "Times that a message was moved aside for half a minute, since its hand-off was refused.", "queue")
	m.reconnects = counter("reconnects_total", "Connections that were lost and are there again.", "connection")
	m.reloads = counter("reloads_total", "Reloads of the configuration: done, or failed and left as it was.", "result")
	m.undecodable = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "hopback", Subsystem: "router", Name: "undecodable_total",
		Help: "Times that a message ended the connection, because this client cannot read it.",
	})
	m.handoff = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "hopback", Subsystem: "router", Name: "handoff_seconds",
		Help:    "From the delivery of a failed message to the confirm of its successor.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"queue"})
	m.blocked = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "hopback", Subsystem: "router", Name: "blocked",
		Help: "1 while the broker takes no publishes, because of an alarm.",
	})
	m.registry.MustRegister(m.undecodable, m.handoff, m.blocked,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler serves the counters, and what the router of the moment says of itself.
func (m *metrics) handler(current func() *generation) http.Handler {
	m.registry.MustRegister(&now{current: current})
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Retried counts.
func (m *metrics) Retried(e hopback.Retried) { m.retried.WithLabelValues(e.Queue, e.Reason).Inc() }

// Parked counts. Whoever may publish to the router's exchange can name any queue:
// those that are not served are not made label values.
func (m *metrics) Parked(e hopback.Parked) {
	queue := e.Queue
	switch e.Reason {
	case attempt.ReasonNoRoute, attempt.ReasonLostRoute, attempt.ReasonUnknownOrigin:
		queue = ""
	}
	m.parked.WithLabelValues(queue, e.Reason).Inc()
}

// Discarded counts.
func (m *metrics) Discarded(e hopback.Discarded) { m.discarded.WithLabelValues(e.Queue).Inc() }

// Reconnected counts.
func (m *metrics) Reconnected(e hopback.Reconnected) {
	m.reconnects.WithLabelValues(e.Connection).Inc()
}

// Blocked notes.
func (m *metrics) Blocked(e hopback.Blocked) {
	m.blocked.Set(0)
	if e.Active {
		m.blocked.Set(1)
	}
}

// HandedOff measures.
func (m *metrics) HandedOff(e router.HandedOff) {
	m.handoff.WithLabelValues(e.Queue).Observe(e.Took.Seconds())
}

// Held counts.
func (m *metrics) Held(e router.Held) { m.held.WithLabelValues(e.Source).Inc() }

// Undecodable counts.
func (m *metrics) Undecodable(router.Undecodable) { m.undecodable.Inc() }

// now collects what is true at the moment.
type now struct{ current func() *generation }

var (
	descReady    = prometheus.NewDesc("hopback_router_ready", "1 while the router is subscribed.", nil, nil)
	descInFlight = prometheus.NewDesc("hopback_router_in_flight", "Messages between their delivery and their acknowledgement.", nil, nil)
	descTrouble  = prometheus.NewDesc("hopback_router_trouble", "1 while the broker lacks something that a route needs, or has it with other arguments: the log says what.", nil, nil)
	descDepth    = prometheus.NewDesc("hopback_router_queue_messages", "Messages that lie ready in the router's own queues. Those in the quarantine and in the parking queue wait for a person.", []string{"queue"}, nil)
)

func (n *now) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReady, descInFlight, descTrouble, descDepth} {
		ch <- d
	}
}

func (n *now) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	yes := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	g := n.current()
	if g == nil {
		gauge(descReady, 0)
		return
	}
	gauge(descReady, yes(g.Ready()))
	gauge(descInFlight, float64(g.InFlight()))
	gauge(descTrouble, yes(g.Trouble() != nil))
	for queue, depth := range g.Depths() {
		gauge(descDepth, float64(depth), queue)
	}
}
