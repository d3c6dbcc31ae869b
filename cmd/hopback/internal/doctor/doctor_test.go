package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

func number(n int64) *int64 { return &n }

// found runs the checks and writes what they find as "error dlx-missing orders".
func found(s *Snapshot) (all []string) {
	for _, f := range Diagnose(s, Scope{}) {
		where := f.Queue
		if where == "" {
			where = f.Name
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Severity, f.Check, where)))
	}
	return all
}

// idle is a queue that figures are known of.
func idle(name, typ string, args Table) *Queue {
	return &Queue{Name: name, Type: typ, Durable: true, Args: args, Figures: Figures{Consumers: number(0), Ready: number(0)}}
}

// States that no broker of ours can be brought into, and what versions make of one
// state.
func TestDiagnose(t *testing.T) {
	plain := func() []*Queue { return []*Queue{idle("orders", quorum, nil)} }
	with := func(edit func(*Snapshot)) func(string) *Snapshot {
		return func(version string) *Snapshot {
			s := &Snapshot{Product: "RabbitMQ", Version: version, Vhost: "/", Queues: plain()}
			edit(s)
			return s
		}
	}
	limited := with(func(s *Snapshot) { s.Queues[0].Args = Table{"x-delivery-limit": int64(1_000_000)} })
	managed := with(func(s *Snapshot) {
		s.Exchanges = []*Exchange{{Name: "own.return", Type: "headers"}}
		s.Bindings = []Binding{{Source: "own.return", Destination: "orders", Kind: "queue", Args: Table{"x-match": "all-with-x", "x-retry-queue": "orders"}}}
	})
	delayed := with(func(s *Snapshot) {
		s.Queues[0].Args = Table{"x-delivery-limit": int64(1_000_000), "x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1000)}
	})
	disabled := with(func(s *Snapshot) {
		s.Queues[0].Args = Table{"x-delivery-limit": int64(1_000_000), "x-delayed-retry-type": "disabled"}
	})
	plugin := with(func(s *Snapshot) {
		s.Queues[0].Args = Table{"x-delivery-limit": int64(1_000_000)}
		s.Exchanges = []*Exchange{{Name: "later", Type: delayedExchange, Args: Table{"x-delayed-type": "direct"}}}
	})
	mirrors := with(func(s *Snapshot) {
		s.Queues = []*Queue{idle("orders", classic, nil)}
		s.Policies = []Policy{{Name: "ha", Pattern: "^orders", ApplyTo: "all", Definition: Table{"ha-mode": "all"}}}
	})
	dark := with(func(s *Snapshot) { s.Queues = []*Queue{{Name: "orders", Type: classic, Durable: true}} })
	hidden := with(func(s *Snapshot) {
		s.Queues, s.Unseen = nil, []string{"policies could not be read"}
	})
	for _, c := range []struct {
		name    string
		state   func(string) *Snapshot
		version string
		want    []string
	}{
		{"no limit", with(func(*Snapshot) {}), "3.13.7", nil},
		{"no limit", with(func(*Snapshot) {}), "4.0.0", []string{"error delivery-limit-default orders"}},
		{"no limit", with(func(*Snapshot) {}), "4.3.0-rc.1", []string{"error delivery-limit-default orders"}},
		{"no limit, version unknown", with(func(*Snapshot) {}), "", nil},
		{"a limit", limited, "4.3.6", nil},
		{"our consumer's", managed, "4.3.6", nil},
		{"delayed retry", delayed, "4.2.9", []string{"error delayed-retry-ignored orders"}},
		{"delayed retry", delayed, "4.3.0", nil},
		{"delayed retry, disabled", disabled, "4.0.5", nil},
		{"plugin", plugin, "4.2.1", []string{"warning plugin-exchange later"}},
		{"plugin", plugin, "4.3.1", []string{"error plugin-exchange later"}},
		{"mirrors", mirrors, "3.13.7", []string{"note mirror-policy ha"}},
		{"mirrors", mirrors, "4.1.0", []string{"warning mirror-policy ha"}},
		{"no figures", dark, "4.1.0", []string{"note not-seen"}},
		{"no policies", hidden, "4.1.0", []string{"note not-seen"}},
	} {
		if got := found(c.state(c.version)); !slices.Equal(got, c.want) {
			t.Errorf("%s on %q: %v, want %v", c.name, c.version, got, c.want)
		}
	}
	s := with(func(*Snapshot) {})("2.4.0")
	s.Product = "LavinMQ"
	if got := found(s); !slices.Equal(got, []string{"note not-seen"}) {
		t.Errorf("on LavinMQ: %v, want that versions of RabbitMQ are not applied to it", got)
	}
}

// The two halves of a setting, as the brokers join them.
func TestSettings(t *testing.T) {
	q := func(typ string, args, policy Table) *Queue {
		return &Queue{Name: "q", Type: typ, Args: args, Policy: policy}
	}
	num := func(n int64) any { return json.Number(fmt.Sprint(n)) }
	for _, c := range []struct {
		name string
		got  any
		want any
	}{
		{"smaller ttl: argument", first(q(classic, Table{"x-message-ttl": num(5)}, Table{"message-ttl": num(9)}).ttl()), int64(5)},
		{"smaller ttl: policy", first(q(quorum, Table{"x-message-ttl": num(9)}, Table{"message-ttl": num(5)}).ttl()), int64(5)},
		{"dlx: argument", first(q(quorum, Table{"x-dead-letter-exchange": "a"}, Table{"dead-letter-exchange": "p"}).dlx()), "a"},
		{"dlx: policy", first(q(quorum, nil, Table{"dead-letter-exchange": "p"}).dlx()), "p"},
		{"dlx of a stream", first(q(stream, nil, Table{"dead-letter-exchange": "p"}).dlx()), ""},
		{"overflow, quorum: policy", q(quorum, Table{"x-overflow": "drop-head"}, Table{"overflow": "reject-publish"}).overflow(), "reject-publish"},
		{"overflow, classic: argument", q(classic, Table{"x-overflow": "drop-head"}, Table{"overflow": "reject-publish"}).overflow(), "drop-head"},
		{"overflow that quorum queues do not know", q(quorum, Table{"x-overflow": "reject-publish-dlx"}, nil).overflow(), "drop-head"},
		{"no overflow", q(classic, nil, nil).overflow(), "drop-head"},
		{"refuses", q(classic, Table{"x-max-length-bytes": num(9), "x-overflow": "reject-publish-dlx"}, nil).refuses(), true},
		{"no limit refuses nothing", q(classic, Table{"x-overflow": "reject-publish"}, nil).refuses(), false},
		{"drops", q(quorum, nil, Table{"max-length": num(9)}).drops(), true},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
	for _, c := range []struct {
		version   string
		arg, pol  any
		limit     int64
		set, ends bool
	}{
		{"3.10.8", nil, nil, 0, false, false},
		{"4.0.5", nil, nil, 20, false, true},
		{"4.0.5", num(5), num(9), 5, true, true},
		{"4.0.5", num(-1), num(9), 9, true, true},
		{"4.0.5", num(-1), nil, -1, true, false},
		{"3.10.8", num(-1), num(9), -1, true, true},
		{"3.10.8", num(999), nil, 999, true, true},
		{"4.3.6", num(1_000_000), nil, 1_000_000, true, false},
	} {
		queue := q(quorum, Table{}, Table{})
		if c.arg != nil {
			queue.Args["x-delivery-limit"] = c.arg
		}
		if c.pol != nil {
			queue.Policy["delivery-limit"] = c.pol
		}
		v := newView(&Snapshot{Version: c.version})
		limit, set := v.deliveryLimit(queue)
		at, ends := v.ends(queue)
		if !set && ends {
			limit = at
		}
		if limit != c.limit || set != c.set || ends != c.ends {
			t.Errorf("delivery limit %v and policy %v on %s: %d, set %t, ends %t; want %d, %t, %t",
				c.arg, c.pol, c.version, limit, set, ends, c.limit, c.set, c.ends)
		}
	}
}

func first[T any](v T, _ bool) T { return v }

func TestRoles(t *testing.T) {
	dlx := func(key string, ttl bool) Table {
		args := Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": key}
		if ttl {
			args["x-message-ttl"] = int64(1000)
		}
		return args
	}
	busy := func(q *Queue) *Queue { q.Consumers = number(1); return q }
	s := &Snapshot{
		Version: "4.0.5", Prefix: "hop",
		Routes: []hopback.Route{{Queue: "dead.orders", Parking: "attic"}},
		Queues: []*Queue{
			busy(idle("orders", quorum, dlx("orders.wait", false))), idle("orders.wait", quorum, dlx("orders", true)),
			busy(idle("watched.q", quorum, dlx("orders.end", true))), idle("orders.end", quorum, nil),
			busy(idle("mails", quorum, dlx("m2", false))), idle("m2", quorum, nil), // an end without a name
			idle("hop.delay.3s", quorum, nil), idle("hop.orders.delay.300ms", quorum, nil), idle("hop.delay.soon", quorum, nil),
			idle("dead.orders", quorum, nil), idle("attic", classic, nil), idle("hop.lost", quorum, nil), idle("log", stream, nil),
			idle("ticks", classic, dlx("orders", true)), idle("errors", classic, nil), busy(idle("error.log", classic, nil)),
			busy(idle("temporary", classic, dlx("orders.dlq", true))), idle("orders.dlq", quorum, nil),
		},
	}
	v := newView(s)
	want := map[string]role{
		"orders": work, "orders.wait": holding, "watched.q": work, "orders.end": work, "mails": work, "m2": parking,
		"hop.delay.3s": holding, "hop.orders.delay.300ms": holding, "hop.delay.soon": work, "dead.orders": work,
		"attic": parking, "hop.lost": parking, "log": other, "ticks": holding, "errors": parking, "error.log": work,
		"temporary": work, "orders.dlq": parking,
	}
	for name, r := range v.roles {
		if w, ok := want[name]; !ok || r != w {
			t.Errorf("%s has the role %d, want %d", name, r, w)
		}
	}
}

// Figures over time, which a broker shows when it likes.
func TestWatching(t *testing.T) {
	start := time.Now()
	sample := func(i int, f Figures) Sample {
		return Sample{At: start.Add(time.Duration(i) * time.Second), Queues: map[string]Figures{"q": f}}
	}
	dlx := func(counts ...int64) (all []Sample) {
		for i, n := range counts {
			all = append(all, sample(i, Figures{Consumers: number(0), Ready: number(0), DeadLettering: number(n)}))
		}
		return all
	}
	// A look every 5 s, at counters; the rates are those of the first look.
	counters := func(redelivered, acked float64, pairs ...[2]int64) (all []Sample) {
		for i, p := range pairs {
			all = append(all, sample(5*i, Figures{Ready: number(0), Stats: MessageStats{
				Redelivered: p[0], Acked: p[1], RedeliverRate: Rate{redelivered}, AckRate: Rate{acked},
			}}))
		}
		return all
	}
	for _, c := range []struct {
		name    string
		samples []Sample
		want    []string
	}{
		{"stuck", dlx(3, 3, 3), []string{"error dead-letter-stuck q"}},
		{"stuck, and growing", dlx(3, 5, 9), []string{"error dead-letter-stuck q"}},
		{"flows", dlx(30, 20, 25), nil},
		{"ends", dlx(3, 0, 3), nil},
		{"seen once", dlx(3), []string{"note dead-letter-stuck q"}},
		{"loops", counters(50, 1, [2]int64{100, 5}, [2]int64{350, 6}, [2]int64{600, 9}), []string{"error requeue-loop q"}},
		{"loops, seen once", counters(50, 1, [2]int64{100, 5}), []string{"error requeue-loop q"}},
		{"looped", counters(50, 1, [2]int64{100, 5}, [2]int64{350, 6}, [2]int64{350, 6}), nil},
		{"a restart", counters(50, 40, [2]int64{100, 50}, [2]int64{350, 200}, [2]int64{600, 400}), nil},
		{"loops, in bursts", counters(0, 0, [2]int64{100, 5}, [2]int64{350, 6}, [2]int64{600, 9}), []string{"error requeue-loop q"}},
		{"hardly any", counters(0.4, 0, [2]int64{10, 5}, [2]int64{12, 5}, [2]int64{14, 5}), nil},
	} {
		q := idle("q", quorum, Table{"x-delivery-limit": int64(1_000_000)})
		q.Figures = c.samples[0].Queues["q"]
		s := &Snapshot{Version: "4.3.6", Queues: []*Queue{q}, Samples: c.samples}
		if got := found(s); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if suspicious := Suspicious(s); (len(suspicious) > 0) != (c.name != "hardly any" && c.name != "a restart") {
			t.Errorf("%s: suspicious are %v", c.name, suspicious)
		}
	}
}

func TestDrift(t *testing.T) {
	s := &Snapshot{
		Version: "4.3.6", Routes: []hopback.Route{{Queue: "orders"}},
		Queues: []*Queue{idle("orders", quorum, nil)},
		Drift: topology.Plan{Differences: []topology.Difference{
			{Kind: "exchange", Name: "hop.delay.1s", State: topology.Missing},
			{Kind: "queue", Name: "hop.delay.1s", State: topology.Missing},
			{Kind: "queue", Name: "hop.delay.2s", State: topology.Missing},
			{Kind: "binding", Name: "hop.delay.1s -> hop.delay.1s", State: topology.Missing},
			{Kind: "queue", Name: "orders", State: topology.Missing, Note: "it is yours"},
			{Kind: "exchange", Name: "hop.return", State: topology.Differs, Key: "type"},
			{Kind: "binding", Name: `hop.error -> old (key "orders")`, State: topology.Extra, Note: "unbind it"},
			{Kind: "binding", State: topology.Unknown, Note: "not seen"},
		}},
	}
	var got []string
	for _, f := range Diagnose(s, Scope{Routes: true}) {
		if f.Check == "drift" {
			got = append(got, fmt.Sprintf("%s %s %s", f.Severity, f.Kind, f.Name))
		}
	}
	slices.Sort(got)
	want := []string{
		"error exchange hop.return", "error queue orders", `warning binding hop.error -> old (key "orders")`, "warning exchange hop.delay.1s", "warning queue hop.delay.1s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("in the scope of the routes: %q, want %q", got, want)
	}
	if all := Diagnose(s, Scope{}); Count(all, Note) != 1 || Count(all, Warning) != 3 {
		t.Errorf("without a scope: %+v", all)
	}
}

// What a queue is called reaches reasons and fixes, and must not break them.
func TestFixesQuote(t *testing.T) {
	s := &Snapshot{Version: "4.0.5", Queues: []*Queue{idle("a.b+c(d)", quorum, nil)}}
	f := Diagnose(s, Scope{})[0]
	if !strings.Contains(f.Fix, `'^a\.b\+c\(d\)$'`) {
		t.Errorf("the pattern is not quoted: %s", f.Fix)
	}
}

func TestJSON(t *testing.T) {
	var q Queue
	if err := json.Unmarshal([]byte(`{"name":"q","type":"quorum","arguments":[],"effective_policy_definition":{"message-ttl":3000000000},
		"consumers":2,"messages_ready":0,"messages_dlx":null,"message_stats":[],"policy":null}`), &q); err != nil {
		t.Fatal(err)
	}
	if ttl, ok := q.ttl(); !ok || ttl != 3_000_000_000 || count(q.Consumers) != 2 || q.DeadLettering != nil || q.Args != nil {
		t.Errorf("read as %+v", q)
	}
	var cs []Consumer
	if err := json.Unmarshal([]byte(`[{"queue":{"name":"q"},"ack_required":true,"prefetch_count":0,"channel_details":[]},
		{"queue":{"name":"q"},"channel_details":{"number":3,"connection_name":"c"}}]`), &cs); err != nil {
		t.Fatal(err)
	}
	if cs[0].Channel.Number != 0 || cs[1].Channel.Number != 3 || cs[1].Channel.Connection != "c" || !cs[0].Acks {
		t.Errorf("read as %+v", cs)
	}
}

// Every check has its section, in this order, and none has a section that is no check.
func TestEveryCheckIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### ([a-z0-9-]+)$`).FindAllStringSubmatch(string(text), -1) {
		sections = append(sections, m[1])
	}
	if !slices.Equal(sections, Checks()) {
		t.Errorf("docs/doctor.md has %v\nthe checks are   %v", sections, Checks())
	}
}
