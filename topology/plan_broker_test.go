package topology_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// TestPlanShowsEachFault takes one thing away, or puts another in its place. What
// exists with other arguments is in TestApplyGoesOn.
func TestPlanShowsEachFault(t *testing.T) {
	remove := func(what ...string) func(*amqp.Channel) error {
		return func(ch *amqp.Channel) error {
			for _, name := range what {
				if err := ch.ExchangeDelete(name, false, false); err != nil {
					return err
				}
				if _, err := ch.QueueDelete(name, false, false, false); err != nil {
					return err
				}
			}
			return nil
		}
	}
	unbind := func(ch *amqp.Channel) error {
		return ch.QueueUnbind("orders", "", "hop.return", amqp.Table{"x-match": "all-with-x", "x-retry-queue": "orders"})
	}
	const missingReturn = `binding "hop.return -> orders" {"x-match": string "all-with-x", "x-retry-queue": string "orders"}: missing`
	for _, f := range []struct {
		name   string
		fault  func(*amqp.Channel) error
		want   []string // with the management API
		unseen []string // of these, what AMQP alone does not show
	}{
		{
			name: "queue missing",
			fault: func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete("hop.delay.1s", false, false, false)
				return err
			},
			want: []string{`queue "hop.delay.1s": missing`, `binding "hop.delay.1s -> hop.delay.1s": missing`},
		},
		{
			name:  "exchange missing",
			fault: func(ch *amqp.Channel) error { return ch.ExchangeDelete("hop.error", false, false) },
			want: []string{
				`exchange "hop.error": missing`, `binding "hop.error -> orders.parked (key \"orders\")": missing`,
				`binding "hop.error -> exchange hop.lost (key \"to an exchange\")": missing`,
			},
		},
		{
			name:  "both missing",
			fault: remove("hop.delay.1s"),
			want:  []string{`exchange "hop.delay.1s": missing`, `queue "hop.delay.1s": missing`, `binding "hop.delay.1s -> hop.delay.1s": missing`},
		},
		{
			name:  "work queue missing",
			fault: func(ch *amqp.Channel) error { _, err := ch.QueueDelete("orders", false, false, false); return err },
			want:  []string{`queue "orders": missing`, missingReturn},
		},
		{
			name: "binding missing", fault: unbind,
			want: []string{missingReturn}, unseen: []string{missingReturn},
		},
		{
			name: "binding with other arguments",
			fault: func(ch *amqp.Channel) error {
				if err := unbind(ch); err != nil {
					return err
				}
				return ch.QueueBind("orders", "", "hop.return", false, amqp.Table{"x-match": "all", "x-retry-queue": "orders"})
			},
			want:   []string{`binding "hop.return -> orders": missing (there is one with x-match string "all", want string "all-with-x")`},
			unseen: []string{`binding "hop.return -> orders": missing (there is one with x-match string "all", want string "all-with-x")`},
		},
		{
			name: "binding with another key",
			fault: func(ch *amqp.Channel) error {
				if err := ch.QueueUnbind("orders.parked", "orders", "hop.error", nil); err != nil {
					return err
				}
				return ch.QueueBind("orders.parked", "Orders", "hop.error", false, nil)
			},
			want:   []string{`binding "hop.error -> orders.parked (key \"orders\")": missing`},
			unseen: []string{`binding "hop.error -> orders.parked (key \"orders\")": missing`},
		},
		{
			name: "more than asked for is no fault",
			fault: func(ch *amqp.Channel) error {
				return ch.QueueBind("orders.parked", "more", "hop.error", false, nil)
			},
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			s := newSpace(t)
			c, top := s.dial(t), sample()
			if err := topology.Apply(t.Context(), c, top); err != nil {
				t.Fatal(err)
			}
			must(t, c, f.fault)
			p, err := topology.MakePlan(t.Context(), c, s.management, top)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Join(f.want, "\n")
			if got := strings.TrimSpace(p.String()); got != want && (want != "" || !p.Empty()) {
				t.Errorf("with management:\n%s\nwant:\n%s", got, want)
			}
			if p.Empty() != (want == "") {
				t.Errorf("Empty is %t", p.Empty())
			}

			p, err = topology.MakePlan(t.Context(), c, nil, top)
			if err != nil {
				t.Fatal(err)
			}
			want = strings.Join(slices.DeleteFunc(f.want, func(l string) bool { return slices.Contains(f.unseen, l) }), "\n")
			last := len(p.Differences) - 1
			if last < 0 || p.Differences[last].State != topology.Unknown {
				t.Errorf("does not say that it saw no arguments:\n%v", p)
			}
			p.Differences = p.Differences[:last]
			if got := strings.TrimSpace(p.String()); got != want && (want != "" || !p.Empty()) {
				t.Errorf("without management:\n%s\nwant:\n%s", got, want)
			}
			// Neither plan has put anything right; Apply does.
			if len(f.want) > len(f.unseen) == (topology.Verify(t.Context(), c, nil, top) == nil) {
				t.Error("a plan has changed something")
			}
			if err := topology.Apply(t.Context(), c, top); err != nil {
				t.Fatal(err)
			}
			s.inOrder(t, c, top)
		})
	}
}

func TestPlanOfAnotherVhost(t *testing.T) {
	s := newSpace(t)
	s.management.Vhost = ""
	_, err := topology.MakePlan(t.Context(), s.dial(t), s.management, sample())
	if err == nil || !strings.Contains(err.Error(), "set Management.Vhost") {
		t.Errorf("got %v", err)
	}
	s.management.Vhost = "no such vhost"
	_, err = topology.MakePlan(t.Context(), nil, s.management, sample())
	if err == nil || !strings.Contains(err.Error(), `is there a vhost "no such vhost"`) {
		t.Errorf("got %v", err)
	}
}

// TestImport: what is exported and imported is what was meant.
func TestImport(t *testing.T) {
	for _, way := range []string{"over HTTP", "with rabbitmqctl"} {
		t.Run(way, func(t *testing.T) {
			s := newSpace(t)
			c := s.dial(t)
			top := sample().Merge(slots(), topology.Topology{
				Exchanges: []topology.Exchange{{Name: "odd <&> \"name\" é", Kind: "topic"}},
				Queues: []topology.Queue{{Name: "typed", Args: amqp.Table{
					"x-queue-type": "classic", "x-max-length": int32(7), "x-single-active-consumer": true, "x-ours": float64(2),
					"x-nested": amqp.Table{"a": []any{int64(3000000000), "s", false}},
				}}},
				Bindings: []topology.Binding{{
					Source: "odd <&> \"name\" é", Destination: "typed", Key: "a.*.#",
					Args: amqp.Table{"f": 1.5, "n": int64(-1), "s": "1", "b": true},
				}},
			})
			// The sample and the wheel mean two different exchanges by this name.
			top.Exchanges = slices.DeleteFunc(top.Exchanges, func(e topology.Exchange) bool { return e.Name == "hop.return" && e.Args == nil })
			defs, err := top.Definitions(s.vhost)
			if err != nil {
				t.Fatal(err)
			}
			if way == "over HTTP" {
				if err := s.Post(t.Context(), "/api/definitions", rawJSON(defs), nil); err != nil {
					t.Fatal(err)
				}
			} else {
				file := filepath.Join(s.Dir(), "definitions.json")
				if err := os.WriteFile(file, defs, 0o644); err != nil {
					t.Fatal(err)
				}
				importFile(t, s, file)
			}
			s.inOrder(t, c, top)
			if err := topology.Apply(t.Context(), c, top); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestImportElsewhere: the virtual host of the file may be overruled by the one
// of the request, and the user's own queue is not in the file.
func TestImportElsewhere(t *testing.T) {
	s := newSpace(t)
	c, top := s.dial(t), sample()
	top.Queues[0].Declare = false
	declareQueue(t, c, "orders", amqp.Table{"x-max-length": int64(3)})
	defs, err := top.Definitions("somewhere else")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Post(t.Context(), "/api/definitions/"+s.vhost, rawJSON(defs), nil); err != nil {
		t.Fatal(err)
	}
	s.inOrder(t, c, top)
}

type rawJSON []byte

func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

// importFile runs rabbitmqctl, which for a broker in a tree of its own sees the
// data folder as /mnt.
func importFile(t *testing.T, s *space, file string) {
	t.Helper()
	_, err := s.Ctl(context.Background(), "import_definitions", file)
	if err == nil {
		return
	}
	if _, err2 := s.Ctl(context.Background(), "import_definitions", "/mnt/"+filepath.Base(file)); err2 != nil {
		t.Fatalf("%v\n%v", err, err2)
	}
}
