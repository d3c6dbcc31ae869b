package conformance

import (
	"bytes"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// errorText is told to the worker as the text of its error.
const errorText = "payment refused: žluťoučký kůň, 支払い, 🐇"

var richCases = []*testCase{
	{
		name: "fail", level: Rich, about: "A rich failure is retried like a rejection, and parked after the last retry",
		probes: one(Fail),
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				if got := text(e.d.Headers[attempt.HeaderQueue]); got != c.cfg.Queue {
					c.add(n, "another x-retry-queue", show(c.cfg.Queue), show(e.d.Headers[attempt.HeaderQueue]), fixQueue)
				}
			})
		},
	},
	{
		name: "fail-then-handle", level: Rich, about: "A message fails twice and is then handled",
		probes: one("fail,fail,handle"),
	},
	{
		name: "mixed", level: Rich, about: "A rejection and a rich failure share one count",
		probes: func(cfg Config, id func() string) []*probe {
			return append(one("reject,fail,handle")(cfg, id), one("fail,reject,handle")(cfg, id)...)
		},
	},
	{
		name: "permanent", level: Rich, about: "A permanent failure is parked at once, also after a retry",
		probes: func(cfg Config, id func() string) []*probe {
			return append(one(Permanent)(cfg, id), one("fail,permanent")(cfg, id)...)
		},
	},
	{
		name: "discard", level: Rich, about: "What the worker gives up is dropped",
		probes: one(Discard),
	},
	{
		name: "after", level: Rich, about: "The delay that is asked for is a number of ms, and kept",
		probes: one(afterWord(asked) + "," + Handle),
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				v := e.d.Headers[attempt.HeaderAfter]
				if ms, ok := numeric(v); !ok || ms != asked.Milliseconds() {
					c.add(n, "another x-retry-after", fmt.Sprintf("%d", asked.Milliseconds()), show(v), "set x-retry-after to a whole number of milliseconds")
				}
			})
		},
	},
	{
		name: "error", level: Rich, about: "The error's text and type are told, and any Unicode in them",
		probes: one("fail,handle", func(p *probe) { p.msg.Headers[HeaderError] = errorText }),
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				if v, ok := e.d.Headers[attempt.HeaderError].(string); !ok || v != errorText {
					c.add(n, "another x-retry-error", show(errorText), show(e.d.Headers[attempt.HeaderError]),
						"set x-retry-error to the text of the error, in UTF-8, as an AMQP string; here that of the header "+HeaderError)
				}
				if v, ok := e.d.Headers[attempt.HeaderErrorType].(string); !ok || v == "" {
					c.add(n, "no x-retry-error-type", "a string that is not empty", show(e.d.Headers[attempt.HeaderErrorType]),
						"set x-retry-error-type to the type or class of the error")
				}
			})
		},
	},
	{
		name: "count", level: Rich, about: "The count is the router's: the worker leaves it as it is",
		probes: one(Fail),
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				v, there := e.d.Headers[attempt.HeaderCount]
				got, ok := numeric(v)
				if (there || n > 1) && (!ok || got != int64(n-1)) {
					c.add(n, "another x-retry-count", fmt.Sprintf("%d, as it was delivered", n-1), show(v), "leave x-retry-count as it was delivered: the router counts")
				}
			})
		},
	},
	{
		name: "origin", level: Rich, about: "Exchange and routing key of the first attempt are told, and never changed",
		probes: one("fail,fail,handle", viaExchange),
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				for _, want := range []struct{ header, value string }{
					{attempt.HeaderExchange, c.cfg.shop()}, {attempt.HeaderRoutingKey, ordersKey},
				} {
					if v, there := e.d.Headers[want.header]; !there || text(v) != want.value {
						c.add(n, "another "+want.header, show(want.value), show(v),
							"set it on the first attempt, to the one of the delivery, and leave it as it is afterwards")
					}
				}
				if e.d.RoutingKey != ordersKey {
					c.add(n, "another routing key", show(ordersKey), show(e.d.RoutingKey), "publish with the routing key of the delivery")
				}
			})
		},
	},
	{
		name: "no-x-death", level: Rich, about: "What the broker noted about earlier deaths is not published again",
		probes: func(cfg Config, id func() string) []*probe {
			return append(one("fail,fail,handle")(cfg, id), one("reject,fail,handle")(cfg, id)...)
		},
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				if v, there := e.d.Headers["x-death"]; there {
					c.add(n, "x-death was copied", "no such header", show(v), "leave x-death out when you publish: with it, the message looks as if it had been rejected")
				}
			})
		},
	},
	{
		name: "derived", level: Rich, about: "A record of another queue is dropped, and a life of its own begins",
		probes: one("fail,handle", derived),
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				for k, foreign := range ofAnotherQueue() {
					if v, there := e.d.Headers[k]; there && same(foreign, v, false) {
						c.add(n, "a header of the other queue's record is left: "+k, "no such header, or your own", show(v),
							"where x-retry-queue names another queue, leave out every header that begins with x-retry-")
					}
				}
			})
			for _, e := range in(events, returned) {
				if e.d.Headers[attempt.HeaderID] == ofAnotherQueue()[attempt.HeaderID] {
					c.add(0, "the message came back with the other's x-retry-id", "an id of its own", show(e.d.Headers[attempt.HeaderID]),
						"where x-retry-queue names another queue, leave out every header that begins with x-retry-")
				}
			}
		},
	},
	{
		name: "properties", level: Rich, about: "Every property is kept, and the delivery mode stays persistent",
		probes: one("fail,fail,handle", withProperties),
		each: func(c *check, p *probe, events []event) {
			c.kept(p, events, false)
			eachPublished(p, events, func(n int, e event) {
				if e.d.DeliveryMode != amqp.Persistent {
					c.add(n, "another delivery-mode", "2", show(e.d.DeliveryMode), "publish with the delivery mode of the delivery, or with 2: otherwise a restart of the broker loses the message")
				}
			})
		},
	},
	{
		name: "headers", level: Rich, about: "Every header is kept: nested, empty, large, dates, and any Unicode",
		probes: one("fail,fail,handle", withHeaders),
		each:   func(c *check, p *probe, events []event) { c.kept(p, events, false) },
	},
	{
		name: "body", level: Rich, about: "The body is kept, byte by byte: binary, empty, large",
		probes: func(cfg Config, id func() string) []*probe {
			var all []*probe
			for _, body := range [][]byte{allBytes(), {}, bytes.Repeat(allBytes(), 1000)} {
				all = append(all, one("fail,handle", func(p *probe) { p.msg.Body = body })(cfg, id)...)
			}
			return all
		},
		each: func(c *check, p *probe, events []event) { c.kept(p, events, false) },
	},
	{
		name: "expiration", level: Rich, about: "The property expiration is kept: it is the message's deadline",
		probes: one(Permanent, func(p *probe) { p.msg.Expiration = expiration }),
		each: func(c *check, p *probe, events []event) {
			const fix = "publish with the property expiration of the delivery"
			eachPublished(p, events, func(n int, e event) {
				if e.d.Expiration != expiration {
					c.add(n, "another expiration", show(expiration), show(e.d.Expiration), fix)
				}
			})
			for _, e := range in(events, parked) {
				if v := text(e.d.Headers[attempt.HeaderExpiration]); v != expiration {
					c.add(0, "the record does not know the expiration", show(expiration), show(v), fix)
				}
			}
		},
	},
	{
		name: "rich-flow", level: Rich, about: "Forty messages fail richly, and none waits for another",
		probes: several(flowSize, "fail,handle"), all: flows,
	},
}

const expiration = "3600000"

var exactCases = []*testCase{
	{
		name: "header-values", level: Exact, about: "Headers keep values that client libraries read wrongly: fractions, signs, large integers, void, bytes",
		probes: one("fail,fail,handle", withValues),
		each:   func(c *check, p *probe, events []event) { c.kept(p, events, false) },
	},
	{
		name: "header-types", level: Exact, about: "Every header keeps its AMQP type: widths of numbers, decimals, bytes, empty lists and tables",
		probes: one("fail,fail,handle", withTypes),
		each:   func(c *check, p *probe, events []event) { c.kept(p, events, true) },
	},
	{
		name: "absent", level: Exact, about: "A property that the message does not have is not added",
		probes: one("fail,fail,handle", func(p *probe) { p.msg.MessageId = "" }),
		each: func(c *check, p *probe, events []event) {
			c.kept(p, events, true)
			eachPublished(p, events, func(n int, e event) {
				if e.d.Expiration != "" || e.d.UserId != "" {
					c.add(n, "a property was added", "neither expiration nor user-id", fmt.Sprintf("expiration %q, user-id %q", e.d.Expiration, e.d.UserId), fixCopy)
				}
				for k, v := range e.d.Headers {
					if _, had := p.msg.Headers[k]; !had && !strings.HasPrefix(k, "x-retry-") && !ofBroker(k) {
						c.add(n, "a header was added: "+k, "no such header", show(v), "add no headers but those of docs/rich-failures.md")
					}
				}
			})
		},
	},
	{
		name: "transient", level: Exact, about: "The delivery mode of a transient message is told to the router, which keeps it",
		probes: one("fail,handle", func(p *probe) { p.msg.DeliveryMode = amqp.Transient }),
		each: func(c *check, p *probe, events []event) {
			eachPublished(p, events, func(n int, e event) {
				if e.d.DeliveryMode != amqp.Transient {
					c.add(n, "another delivery-mode", "1", show(e.d.DeliveryMode), "publish with the delivery mode of the delivery")
				}
			})
		},
	},
}

// ofBroker reports whether the broker may have added a header to a delivery. A router
// takes those off, so that a consumer need not; x-death has a case of its own.
func ofBroker(name string) bool {
	return name == "x-death" || name == "x-delivery-count" || name == "x-acquired-count" ||
		strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}
