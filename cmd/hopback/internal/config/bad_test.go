package config

import (
	"errors"
	"strings"
	"testing"
)

// head is the first line of most files below, so that line 2 is where they
// begin to differ.
const head = "version: 1\n"

// bad are files that cannot work, each with all the messages that it gives.
var bad = []struct {
	name, file string
	want       []string
}{
	{"empty", "", []string{`f:1: the file is empty: begin with version: 1`}},
	{"only a comment", "# nothing\n", []string{`f:1: the file is empty: begin with version: 1`}},
	{"only null", "~\n", []string{`f:1: the file is empty: begin with version: 1`}},
	{"a list", "- orders\n", []string{`f:1: begin with version: 1`}},
	{"one word", "orders\n", []string{`f:1: begin with version: 1`}},
	{"no version", "prefix: hop\n", []string{`f:1: version: is missing: write version: 1`}},
	{"a tab", head + "broker:\n\turl: amqp://h/\n", []string{`f:3: this is not YAML: found character that cannot start any token; indent with spaces, and quote text that begins with a special character`}},
	{"a bracket", head + "routes: [{queue: orders}\n", []string{`f:2: this is not YAML: did not find expected ',' or ']'`}},
	{"an unknown alias", head + "routes: *them\n", []string{`f:2: this is not YAML: unknown anchor 'them' referenced`}},
	{"two documents", head + "---\nversion: 1\n", []string{`f:2: a second document begins here: keep to one, and remove the line ---`}},

	{"version 2", "version: 2\n", []string{`f:1: version: "2" cannot work: write 1`}},
	{"version as text", "version: \"1\"\n", []string{`f:1: version: "1" cannot work: write 1 without quotes`}},
	{"version as a word", "version: one\n", []string{`f:1: version: "one" cannot work: write 1`}},
	{"version as a float", "version: 1.0\n", []string{`f:1: version: "1.0" cannot work: write 1`}},

	{"unknown key", head + "prefx: hop\n", []string{`f:2: prefx: is not a key here: did you mean prefix?`}},
	{"unknown key, far off", head + "colour: red\n", []string{`f:2: colour: is not a key here: use version, prefix, broker, policies or routes`}},
	{"key of another section", head + "max_retries: 3\n", []string{`f:2: max_retries: is not a key here: it belongs into a policy, below policies`}},
	{"policy key in a route", head + "routes:\n- queue: a\n  max_retries: 3\n", []string{`f:4: routes[0].max_retries: is not a key here: it belongs into a policy, below policies`}},
	{"route key in a policy", head + "policies:\n  p:\n    mechanism: wheel\n", []string{`f:4: policies.p.mechanism: is not a key here: it belongs into a route, below routes`}},
	{"another tool's word", head + "policies: {p: {max_attempts: 3}}\n", []string{`f:2: policies.p.max_attempts: is not a key here: did you mean max_retries?`}},
	{"another tool's word for a delay", head + "policies: {p: {initial_interval: 3s, multiplier: 2}}\n", []string{
		`f:2: policies.p.initial_interval: is not a key here: did you mean base?`,
		`f:2: policies.p.multiplier: is not a key here: did you mean factor?`,
	}},
	{"upper case", head + "policies: {p: {Jitter: full}}\n", []string{`f:2: policies.p.Jitter: is not a key here: did you mean jitter?`}},
	{"duplicate key", head + "prefix: a\nprefix: b\n", []string{`f:3: prefix: is here twice: it is in line 2 already, remove one`}},
	{"duplicate policy", head + "policies:\n  p: {base: 1s}\n  p: {base: 2s}\n", []string{`f:4: policies.p: is here twice: it is in line 3 already, remove one`}},
	{"key without a value", head + "prefix:\n", []string{`f:2: prefix: has no value: write one, or remove the key`}},
	{"section without a value", head + "policies:\n", []string{`f:2: policies: has no value: write one, or remove the key`}},
	{"declare without a value", head + "routes:\n- queue: a\n  declare:\n", []string{`f:4: routes[0].declare: has no value: write one, or remove the key`}},
	{"a key that is a list", head + "? [a, b]\n: 1\n", []string{`f:2: a key must be one word`}},

	{"empty prefix", head + "prefix: \"\"\n", []string{`f:2: prefix: "" cannot work: write one, or remove the key`}},
	{"prefix of the broker's own", head + "prefix: amq.hop\n", []string{`f:2: prefix: "amq.hop" cannot work: choose another: the broker keeps names that begin with amq. to itself`}},
	{"prefix with a space", head + "prefix: my hop\n", []string{`f:2: prefix: "my hop" cannot work: choose one without spaces`}},
	{"prefix as a number", head + "prefix: 7\n", []string{`f:2: prefix: "7" cannot work: put it in quotes, since YAML takes it for something else than text`}},
	{"prefix as a list", head + "prefix: [a]\n", []string{`f:2: prefix: "a list" cannot work: write one text`}},

	{"broker as text", head + "broker: amqp://u:secret@h/\n", []string{`f:2: broker: "amqp://***@h/" cannot work: write keys below it, each on a line of its own`}},
	{"url of another kind", head + "broker:\n  url: http://h:15672\n", []string{`f:3: broker.url: "http://h:15672" cannot work: write it as amqp://user:password@host:5672/vhost: it must begin with amqp:// or amqps://`}},
	{"url without a host", head + "broker:\n  url: amqp:///\n", []string{`f:3: broker.url: "***" cannot work: name the host, as in amqp://user:password@host:5672/vhost`}},
	{"url with a bad password", head + "broker:\n  url: amqp://u:se/cr@et@h/\n", []string{`f:3: broker.url: "***" cannot work: write it as amqp://user:password@host:5672/vhost and percent-encode special characters of user, password and vhost, or give the credentials in HOPBACK_BROKER_USERNAME and HOPBACK_BROKER_PASSWORD`}},
	{"url with a bad port", head + "broker:\n  url: amqp://h:port/\n", []string{`f:3: broker.url: "***" cannot work: write it as amqp://user:password@host:5672/vhost and percent-encode special characters of user, password and vhost, or give the credentials in HOPBACK_BROKER_USERNAME and HOPBACK_BROKER_PASSWORD`}},
	{"vhost with a slash", head + "broker:\n  url: amqp://u:secret@h/a/b\n", []string{`f:3: broker.url: "amqp://u:***@h/a/b" cannot work: percent-encode a slash in the name of the vhost as %2F`}},
	{"url as a list", head + "broker: {url: [amqp://u:secret@h/]}\n", []string{`f:2: broker.url: "a list" cannot work: write one text`}},
	{"management url of another kind", head + "broker:\n  management_url: amqp://u:secret@h/\n", []string{`f:3: broker.management_url: "amqp://u:***@h/" cannot work: write it as http://user:password@host:15672: it must begin with http:// or https://`}},
	{"unknown broker key", head + "broker:\n  uri: amqp://u:secret@h/\n", []string{`f:3: broker.uri: is not a key here: did you mean url?`}},

	{"backoff", head + "policies: {p: {backoff: expnential}}\n", []string{`f:2: policies.p.backoff: "expnential" cannot work: use exponential, linear, constant, fibonacci or list`}},
	{"backoff as a list", head + "policies: {p: {backoff: [1s, 2s]}}\n", []string{`f:2: policies.p.backoff: "a list" cannot work: use exponential, linear, constant, fibonacci or list`}},
	{"jitter as a switch", head + "policies: {p: {jitter: true}}\n", []string{`f:2: policies.p.jitter: "true" cannot work: use full, equal, proportional, decorrelated or none`}},
	{"number for a duration", head + "policies:\n  p:\n    base: 10\n", []string{`f:4: policies.p.base: "10" cannot work: write the unit too: 10s`}},
	{"fraction for a duration", head + "policies: {p: {base: 0.5}}\n", []string{`f:2: policies.p.base: "0.5" cannot work: write the unit too: 0.5s`}},
	{"quoted number for a duration", head + "policies: {p: {base: \"10\"}}\n", []string{`f:2: policies.p.base: "10" cannot work: write the unit too: 10s`}},
	{"days", head + "policies: {p: {max_age: 2d}}\n", []string{`f:2: policies.p.max_age: "2d" cannot work: write 48h, or unlimited`}},
	{"minutes", head + "policies: {p: {base: 2min, max: 5 minutes}}\n", []string{
		`f:2: policies.p.base: "2min" cannot work: write 2m`,
		`f:2: policies.p.max: "5 minutes" cannot work: write 5m`,
	}},
	{"ISO 8601", head + "policies: {p: {base: PT1S}}\n", []string{`f:2: policies.p.base: "PT1S" cannot work: write a duration such as 500ms, 1s or 2h`}},
	{"zero duration", head + "policies: {p: {base: 0s}}\n", []string{`f:2: policies.p.base: "0s" cannot work: write a duration above zero, such as 1s`}},
	{"zero", head + "policies: {p: {min_delay: 0}}\n", []string{`f:2: policies.p.min_delay: "0" cannot work: write a duration above zero, such as 1s`}},
	{"max_age zero", head + "policies: {p: {max_age: 0}}\n", []string{`f:2: policies.p.max_age: "0" cannot work: write a duration above zero, such as 1s, or unlimited`}},
	{"negative duration", head + "policies: {p: {max: -1s}}\n", []string{`f:2: policies.p.max: "-1s" cannot work: write a duration above zero, such as 1s`}},
	{"unlimited where there is no such thing", head + "policies: {p: {max: unlimited}}\n", []string{`f:2: policies.p.max: "unlimited" cannot work: write a duration such as 500ms, 1s or 2h`}},
	{"microseconds", head + "policies: {p: {min_delay: 1500us}}\n", []string{`f:2: policies.p.min_delay: "1500us" cannot work: write whole milliseconds: brokers count in them`}},
	{"duration as a switch", head + "policies: {p: {base: true}}\n", []string{`f:2: policies.p.base: "true" cannot work: write a duration such as 500ms, 1s or 2h`}},
	{"a duration without end", head + "policies: {p: {base: 99999999999h}}\n", []string{`f:2: policies.p.base: "99999999999h" cannot work: write a duration such as 500ms, 1s or 2h`}},
	{"max beyond the longest slot", head + "policies: {p: {max: 48h}}\n", []string{
		`f:2: policies.p.max: "48h" cannot work: use at most 25h0m0s, the longest slot`,
	}},
	{"base above max", head + "policies:\n  p:\n    base: 10m\n", []string{`f:4: policies.p.base: "10m" cannot work: use at most max, which is 1m0s unless set, or set max to at least 10m0s`}},
	{"one unreadable, the other judged without it", head + "policies:\n  p:\n    base: 10m\n    max: 20\n", []string{`f:5: policies.p.max: "20" cannot work: write the unit too: 20s`}},
	{"min_delay above max", head + "policies:\n  p:\n    max: 2s\n    min_delay: 3s\n", []string{`f:5: policies.p.min_delay: "3s" cannot work: use at most max, which is 2s, or raise max`}},
	{"factor below one", head + "policies: {p: {factor: 0.5}}\n", []string{`f:2: policies.p.factor: "0.5" cannot work: write a number of at least 1`}},
	{"factor NaN", head + "policies: {p: {factor: .nan}}\n", []string{`f:2: policies.p.factor: ".nan" cannot work: write a number of at least 1`}},
	{"factor as a word", head + "policies: {p: {factor: two}}\n", []string{`f:2: policies.p.factor: "two" cannot work: write a number of at least 1`}},
	{"factor without effect", head + "policies: {p: {backoff: linear, factor: 3}}\n", []string{`f:2: policies.p.factor: "3" cannot work: leave it out: backoff linear has no factor, only exponential does`}},
	{"ratio of more than all", head + "policies: {p: {jitter: proportional, jitter_ratio: 20}}\n", []string{`f:2: policies.p.jitter_ratio: "20" cannot work: write a number above 0 and at most 1`}},
	{"ratio of nothing", head + "policies: {p: {jitter: proportional, jitter_ratio: 0}}\n", []string{`f:2: policies.p.jitter_ratio: "0" cannot work: write a number above 0 and at most 1`}},
	{"delays without list", head + "policies: {p: {delays: [1s]}}\n", []string{`f:2: policies.p.delays: "[1s]" cannot work: leave it out, or set backoff to list, the only kind that takes delays`}},
	{"list without delays", head + "policies: {p: {backoff: list}}\n", []string{`f:2: policies.p.delays: "[]" cannot work: list at least one delay, such as [10s, 1m, 10m]`}},
	{"one delay, not in a list", head + "policies: {p: {backoff: list, delays: 10s}}\n", []string{`f:2: policies.p.delays: "10s" cannot work: write a list: [10s]`}},
	{"a bad delay in a list", head + "policies:\n  p:\n    backoff: list\n    delays:\n    - 1s\n    - 2\n", []string{`f:7: policies.p.delays[1]: "2" cannot work: write the unit too: 2s`}},
	{"negative retries", head + "policies: {p: {max_retries: -1}}\n", []string{`f:2: policies.p.max_retries: "-1" cannot work: write a whole number from 0 to 1000000`}},
	{"too many retries", head + "policies: {p: {max_retries: 1000001}}\n", []string{`f:2: policies.p.max_retries: "1000001" cannot work: write a whole number from 0 to 1000000`}},
	{"unlimited retries", head + "policies: {p: {max_retries: unlimited}}\n", []string{`f:2: policies.p.max_retries: "unlimited" cannot work: write a whole number from 0 to 1000000`}},
	{"half a retry", head + "policies: {p: {max_retries: 2.5}}\n", []string{`f:2: policies.p.max_retries: "2.5" cannot work: write a whole number from 0 to 1000000`}},
	{"quoted retries", head + "policies: {p: {max_retries: '3'}}\n", []string{`f:2: policies.p.max_retries: "3" cannot work: write 3 without quotes`}},
	{"an empty error type", head + "policies: {p: {permanent_types: ['']}}\n", []string{`f:2: policies.p.permanent_types[0]: "" cannot work: write one, or remove the key`}},
	{"a policy without a name", head + "policies: {'': {base: 1s}}\n", []string{`f:2: policies: give it a name: a text that is not empty`}},
	{"a policy that is text", head + "policies: {p: standard}\n", []string{`f:2: policies.p: "standard" cannot work: write keys below it, each on a line of its own`}},
	{"policies as a list", head + "policies:\n- {base: 1s}\n", []string{`f:3: policies: "a list" cannot work: write keys below it, each on a line of its own`}},

	{"routes as text", head + "routes: orders\n", []string{`f:2: routes: "orders" cannot work: write a list, each entry behind a dash`}},
	{"a route that is text", head + "routes: [orders]\n", []string{`f:2: routes[0]: "orders" cannot work: write keys below it, each on a line of its own`}},
	{"a route without a queue", head + "routes:\n- policy: default\n", []string{`f:3: routes[0].queue: is missing: write queue: orders`}},
	{"a queue that is a number", head + "routes:\n- queue: 7\n", []string{`f:3: routes[0].queue: "7" cannot work: put it in quotes, since YAML takes it for something else than text`}},
	{"a queue too long", head + "routes:\n- queue: " + strings.Repeat("q", 256) + "\n", []string{
		`f:3: routes[0].queue: "` + strings.Repeat("q", 100) + `…" cannot work: AMQP names have at most 255 bytes`,
	}},
	{"an unknown policy", head + "policies: {standard: {base: 1s}}\nroutes:\n- queue: a\n  policy: standart\n", []string{`f:5: routes[0].policy: "standart" cannot work: did you mean standard?`}},
	{"an unknown policy, far off", head + "policies: {standard: {base: 1s}}\nroutes:\n- queue: a\n  policy: hasty\n", []string{`f:5: routes[0].policy: "hasty" cannot work: use standard, or define it below policies`}},
	{"an unknown policy, and none known", head + "routes:\n- {queue: a, policy: hasty}\n", []string{`f:3: routes[0].policy: "hasty" cannot work: define it below policies`}},
	{"mechanism misspelt", head + "routes:\n- queue: a\n  mechanism: nativ\n", []string{`f:4: routes[0].mechanism: "nativ" cannot work: use auto, native, wheel, ladder, plugin or native-linear`}},
	{"mechanism native-linear", head + "routes:\n- queue: a\n  mechanism: native-linear\n", []string{
		`f:4: routes[0].mechanism: "native-linear" cannot work: use a policy with backoff: linear, or another mechanism: the broker waits base × n, and this policy is exponential`,
	}},
	{"a ladder without rungs", head + "routes:\n- queue: a\n  mechanism: ladder\n", []string{`f:3: routes[0].ladder: "[]" cannot work: list at least one delay, such as [1s, 10s, 1m]`}},
	{"rungs without a ladder", head + "routes:\n- queue: a\n  ladder: [1s]\n", []string{`f:4: routes[0].ladder: "[1s]" cannot work: a list of delays needs mechanism: ladder`}},
	{"rungs in disorder", head + "routes:\n- queue: a\n  mechanism: ladder\n  ladder:\n  - 2s\n  - 1s\n", []string{`f:7: routes[0].ladder[1]: "1s" cannot work: list the delays in rising order, each once`}},
	{"a rung too long", head + "routes:\n- queue: a\n  mechanism: ladder\n  ladder: [1s, 26h]\n", []string{`f:5: routes[0].ladder[1]: "26h" cannot work: use delays from 1ms to 25h0m0s`}},
	{"parking in the work queue", head + "routes:\n- queue: a\n  parking: a\n", []string{`f:4: routes[0].parking: "a" cannot work: name another queue: a message parked in its own work queue would loop for ever`}},
	{"parking in another's work queue", head + "routes:\n- queue: a\n  parking: b\n- queue: b\n", []string{`f:4: routes[0].parking: "b" cannot work: name another queue: it is the work queue of routes[1], and parked messages would be worked on again`}},
	{"isolate as yes", head + "routes:\n- queue: a\n  isolate: yes\n", []string{`f:4: routes[0].isolate: "yes" cannot work: write true or false`}},
	{"isolate as a number", head + "routes:\n- queue: a\n  isolate: 1\n", []string{`f:4: routes[0].isolate: "1" cannot work: write true or false`}},
	{"precision", head + "routes:\n- queue: a\n  precision: 2\n", []string{`f:4: routes[0].precision: "2" cannot work: use auto, one or two`}},
	{"the same queue twice", head + "routes:\n- queue: a\n- queue: b\n- queue: a\n", []string{`f:5: routes[2].queue: "a" cannot work: it has a route already, routes[0] in line 3: keep one of them`}},
	{"a queue of ours", head + "routes:\n- queue: hop.lost\n- queue: hop.delay.1s\n", []string{
		`f:3: routes[0].queue: "hop.lost" cannot work: choose another: queues of this name are Hopback's own; or set another prefix`,
		`f:4: routes[1].queue: "hop.delay.1s" cannot work: choose another: queues of this name are Hopback's own; or set another prefix`,
	}},
	{"a parking queue of ours", head + "routes:\n- queue: a\n  parking: hop.lost\n", []string{`f:4: routes[0].parking: "hop.lost" cannot work: choose another: queues of this name are Hopback's own; or set another prefix`}},
	{"declare: queue type", head + "routes:\n- queue: a\n  declare:\n    type: stream\n", []string{`f:5: routes[0].declare.type: "stream" cannot work: use quorum or classic`}},
	{"declare: exchange type", head + "routes:\n- queue: a\n  declare: {exchange: shop, exchange_type: topical}\n", []string{`f:4: routes[0].declare.exchange_type: "topical" cannot work: use topic, direct, fanout or headers`}},
	{"declare: a key without an exchange", head + "routes:\n- queue: a\n  declare: {routing_key: order.create}\n", []string{`f:4: routes[0].declare.routing_key: "order.create" cannot work: name declare.exchange too, or leave the key out`}},
	{"declare as a switch", head + "routes:\n- queue: a\n  declare: true\n", []string{`f:4: routes[0].declare: "true" cannot work: write keys below it, each on a line of its own`}},

	{"an alias in itself", head + "policies:\n  a:\n    delays: &d [1s, *d]\n", []string{`f:4: policies.a.delays[1]: "a list" cannot work: write one duration, such as 1s`}},
	{"a merge into itself", head + "policies:\n  a: &a {<<: *a}\n", []string{`f:3: policies.a: << stands inside its own anchor, or is repeated without end: write the values out`}},
	{"a merge of text", head + "prefix: &p hop\npolicies:\n  a: {<<: *p}\n", []string{`f:4: policies.a: << needs an alias to a section, such as <<: *standard`}},
	{"what is merged in is judged too", head + "policies:\n  a: &a {base: 10}\n  b: {<<: *a}\n", []string{
		`f:3: policies.a.base: "10" cannot work: write the unit too: 10s`,
		`f:3: policies.b.base: "10" cannot work: write the unit too: 10s`,
	}},

	{"all at once, in the order of the file", `version: 1
prefx: hop
policies:
  standard:
    base: 10
    jiter: full
    max_retries: -3
routes:
  - queue: orders
    policy: standard
    mechanism: nativ
  - policy: none
`, []string{
		`f:2: prefx: is not a key here: did you mean prefix?`,
		`f:5: policies.standard.base: "10" cannot work: write the unit too: 10s`,
		`f:6: policies.standard.jiter: is not a key here: did you mean jitter?`,
		`f:7: policies.standard.max_retries: "-3" cannot work: write a whole number from 0 to 1000000`,
		`f:11: routes[0].mechanism: "nativ" cannot work: use auto, native, wheel, ladder, plugin or native-linear`,
		`f:12: routes[1].queue: is missing: write queue: orders`,
		`f:12: routes[1].policy: "none" cannot work: use standard, or define it below policies`,
	}},
}

func TestBadFiles(t *testing.T) {
	for _, c := range bad {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f", []byte(c.file), nil)
			var got Problems
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want problems", err)
			}
			if text := strings.Join(c.want, "\n"); got.Error() != text {
				t.Errorf("got\n%s\nwant\n%s", got, text)
			}
			if strings.Contains(got.Error(), "secret") {
				t.Errorf("a password is shown:\n%s", got)
			}
			for _, p := range got {
				if p.Line < 1 || p.Column < 1 {
					t.Errorf("%v has no position: %d:%d", p, p.Line, p.Column)
				}
			}
		})
	}
}
