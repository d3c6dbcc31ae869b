package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

// example is the example at the root of the repository.
const example = "../../../../hopback.yaml"

func TestExample(t *testing.T) {
	c, err := Load(example, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Routes) != 2 || c.Routes[0].Queue != "orders" || c.Routes[0].Policy.Name != "standard" {
		t.Errorf("routes: %+v", c.Routes)
	}
	if want := []string{"standard", "patient"}; !slices.Equal(c.PolicyNames, want) {
		t.Errorf("policies %q, want %q in the order of the file", c.PolicyNames, want)
	}
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range [][]Key{root.Keys, brokerKeys, policyKeys, routeKeys, declareKeys} {
		for _, k := range keys {
			if !strings.Contains(string(data), k.Name+":") {
				t.Errorf("the example does not show %s", k.Name)
			}
		}
	}
}

func TestEveryValueArrives(t *testing.T) {
	c, err := Parse("f", []byte(`version: 1
prefix: later
broker: {url: "amqps://u:p@h:1/v", management_url: "https://h:2"}
policies:
  a:
    backoff: exponential
    base: 2s
    factor: 1.5
    max: 2m
    jitter: proportional
    jitter_ratio: 0.25
    min_delay: 300ms
    max_retries: 7
    max_age: 36h
    max_retry_after: 90m
    permanent_types: [A, b.C]
  b: {backoff: list, delays: [10s, 1m30s], max_retries: 0, max_age: unlimited}
routes:
  - queue: q
    policy: b
    mechanism: ladder
    ladder: [1s, 500s]
    parking: p
    isolate: true
    declare: {type: classic, exchange: e, exchange_type: direct, routing_key: k}
  - {queue: r, precision: two}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := hopback.Policy{
		Name: "a", MaxRetries: 7, MaxAge: 36 * time.Hour, MaxRetryAfter: 90 * time.Minute, PermanentTypes: []string{"A", "b.C"},
		Schedule: hopback.Schedule{
			Backoff: hopback.Exponential, Base: 2 * time.Second, Factor: 1.5, Max: 2 * time.Minute,
			Jitter: hopback.Proportional, JitterRatio: 0.25, MinDelay: 300 * time.Millisecond,
		},
	}
	b := hopback.Policy{
		Name: "b", MaxRetries: hopback.NoRetries, MaxAge: hopback.Unlimited,
		Schedule: hopback.Schedule{Backoff: hopback.List, Delays: []time.Duration{10 * time.Second, 90 * time.Second}},
	}
	want := Config{
		File: "f", Prefix: "later", Broker: Broker{URL: "amqps://u:p@h:1/v", ManagementURL: "https://h:2"},
		Policies: map[string]hopback.Policy{"a": a, "b": b}, PolicyNames: []string{"a", "b"},
		Routes: []hopback.Route{
			{
				Queue: "q", Policy: b, Mechanism: hopback.Ladder, Ladder: []time.Duration{time.Second, 500 * time.Second}, Parking: "p", Isolate: true,
				Declare: &hopback.Declare{Type: "classic", Exchange: "e", ExchangeType: "direct", RoutingKey: "k"},
			},
			{Queue: "r", Policy: hopback.Policy{Name: "default"}, Precision: hopback.PrecisionTwo},
		},
	}
	c.places = nil
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("got\n%+v\nwant\n%+v", *c, want)
	}
}

func TestGoodFiles(t *testing.T) {
	for _, c := range good {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse("f", []byte(c.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.check != nil && !c.check(got) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// good are files that work.
var good = []struct {
	name, file string
	check      func(*Config) bool
}{
	{"nothing but the version", "version: 1\n", func(c *Config) bool { return c.Prefix == "hop" && len(c.Routes) == 0 }},
	{"a route alone", head + "routes: [{queue: a}]\n", func(c *Config) bool { return c.Routes[0].Policy.Name == "default" }},
	{"a default of one's own", head + "policies: {default: {base: 3s}}\nroutes: [{queue: a}]\n", func(c *Config) bool { return c.Routes[0].Policy.Base == 3*time.Second }},
	{"an alias", head + "policies:\n  a: &a {base: 3s}\n  b: *a\n", func(c *Config) bool { return c.Policies["b"].Base == 3*time.Second && c.Policies["b"].Name == "b" }},
	{"a merge, and what is written wins", head + "policies:\n  a: &a {base: 3s, max_retries: 9}\n  b: {<<: *a, base: 4s}\n", func(c *Config) bool {
		return c.Policies["b"].Base == 4*time.Second && c.Policies["b"].MaxRetries == 9 && c.Policies["a"].Base == 3*time.Second
	}},
	{"a merge of two, the first wins", head + "policies:\n  a: &a {base: 3s}\n  b: &b {base: 4s, max: 5s}\n  c: {<<: [*a, *b]}\n", func(c *Config) bool {
		return c.Policies["c"].Base == 3*time.Second && c.Policies["c"].Max == 5*time.Second
	}},
	{"a policy in quotes", head + "policies: {\"1\": {base: 3s}}\nroutes: [{queue: a, policy: \"1\"}]\n", func(c *Config) bool { return c.Routes[0].Policy.Base == 3*time.Second }},
	{"an empty policy", head + "policies: {a: {}}\n", func(c *Config) bool { return reflect.DeepEqual(c.Policies["a"], hopback.Policy{Name: "a"}) }},
	{"numbers as YAML has them", head + "policies: {a: {factor: 3, max_retries: 0x10}}\n", func(c *Config) bool { return c.Policies["a"].MaxRetries == 16 && c.Policies["a"].Factor == 3 }},
	{"a vhost with special characters", head + "broker: {url: \"amqp://u:p%40ss%2Fw@h/a%2Fb%20%40\"}\n", nil},
	{"a date for a queue", head + "routes: [{queue: 2024-01-01}]\n", func(c *Config) bool { return c.Routes[0].Queue == "2024-01-01" }},
	{"JSON", `{"version": 1, "routes": [{"queue": "a", "isolate": true}]}`, func(c *Config) bool { return c.Routes[0].Isolate }},
	{"Windows line ends", "version: 1\r\nprefix: a\r\n", func(c *Config) bool { return c.Prefix == "a" }},
	{"one document with its marker", "---\nversion: 1\n", nil},
	{"two routes that park in one queue", head + "routes: [{queue: a, parking: p}, {queue: b, parking: p}]\n", nil},
}

func TestEnvironmentWins(t *testing.T) {
	const text = head + "broker: {url: \"amqp://a:b@file/v\", management_url: \"http://a:b@file:1\"}\n"
	for _, c := range []struct {
		name string
		env  map[string]string
		want Broker
	}{
		{"nothing set", nil, Broker{"amqp://a:b@file/v", "http://a:b@file:1"}},
		{"both", map[string]string{EnvBrokerURL: "amqp://env/", EnvManagementURL: "http://env"}, Broker{"amqp://env/", "http://env"}},
		{"password", map[string]string{EnvPassword: "p@ss/w:rd#?%&+ é"}, Broker{"amqp://a:p%40ss%2Fw%3Ard%23%3F%25&+%20%C3%A9@file/v", "http://a:p%40ss%2Fw%3Ard%23%3F%25&+%20%C3%A9@file:1"}},
		{"user", map[string]string{EnvUsername: "c"}, Broker{"amqp://c:b@file/v", "http://c:b@file:1"}},
		{"url and password", map[string]string{EnvBrokerURL: "amqp://env/", EnvPassword: "p"}, Broker{"amqp://guest:p@env/", "http://a:p@file:1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse("f", []byte(text), func(k string) string { return c.env[k] })
			if err != nil {
				t.Fatal(err)
			}
			if got.Broker != c.want {
				t.Errorf("got %+v, want %+v", got.Broker, c.want)
			}
		})
	}
}

func TestBadEnvironment(t *testing.T) {
	env := map[string]string{EnvBrokerURL: "amqp://u:se/cr@et@h/", EnvManagementURL: "ftp://u:secret@h"}
	_, err := Parse("f", []byte("version: 1\n"), func(k string) string { return env[k] })
	const want = `HOPBACK_BROKER_URL: broker.url: "***" cannot work: write it as amqp://user:password@host:5672/vhost and percent-encode special characters of user, password and vhost, or give the credentials in HOPBACK_BROKER_USERNAME and HOPBACK_BROKER_PASSWORD
HOPBACK_MANAGEMENT_URL: broker.management_url: "ftp://u:***@h" cannot work: write it as http://user:password@host:15672: it must begin with http:// or https://`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestRedact(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"amqp://u:secret@h/v", "amqp://***@h/v"},
		{"dialing amqp://u:se@cr/et@h:5672/v: refused", "dialing amqp://***@h:5672/v: refused"},
		{"two: http://u:secret@a and http://u:secret@b", "two: http://***@a and http://***@b"},
		{"//u:secret@h", "//***@h"},
		{"no credentials: amqp://h/v", "no credentials: amqp://h/v"},
		{"a@b.c", "a@b.c"},
	} {
		if got := Redact(c.in); got != c.want {
			t.Errorf("Redact(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load("nowhere.yaml", nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	c, err := Load("-", strings.NewReader("version: 1\n"), nil)
	if err != nil || c.File != "<stdin>" {
		t.Errorf("standard input: %v, %v", c, err)
	}
	if _, err := Load("-", strings.NewReader("version: 1\n"+strings.Repeat("#", maxFile)), nil); err == nil || !strings.Contains(err.Error(), "4 MiB") {
		t.Errorf("a file without end: %v", err)
	}
}

func TestNeeds(t *testing.T) {
	c, err := Parse("f", []byte("version: 1\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var p Problem
	if err := c.NeedBroker(); !errors.As(err, &p) || p.Field != "broker.url" {
		t.Errorf("no broker: %v", err)
	}
	if err := c.NeedRoutes(); !errors.As(err, &p) || p.Field != "routes" {
		t.Errorf("no routes: %v", err)
	}
	if _, err := c.PolicyOf("x"); err == nil {
		t.Error("an unknown policy was found")
	}
}

// A file of few bytes may stand for millions of values.
func TestAliasesDoNotExplode(t *testing.T) {
	var b strings.Builder
	b.WriteString("version: 1\npolicies:\n  p0: &p0\n    delays: &d [" + strings.Repeat("1s, ", 2000) + "1s]\n")
	for i := 1; i < 1000; i++ {
		fmt.Fprintf(&b, "  p%d: {delays: *d}\n", i)
	}
	_, err := Parse("f", []byte(b.String()), nil)
	if err == nil || !strings.Contains(err.Error(), "too many values") {
		t.Errorf("got %.200v", err)
	}
}

// The table must name the fields that the library has, no more and no less,
// and their defaults must be the library's own.
func TestTableIsTheLibrarys(t *testing.T) {
	for _, c := range []struct {
		keys []Key
		of   any
	}{
		{root.Keys, file{}}, {brokerKeys, Broker{}}, {policyKeys, hopback.Policy{}}, {routeKeys, route{}}, {declareKeys, hopback.Declare{}},
	} {
		fields := fieldsOf(reflect.New(reflect.TypeOf(c.of)).Elem())
		for _, k := range c.keys {
			if _, ok := fields[k.Name]; !ok {
				t.Errorf("%T has no field %s", c.of, k.Name)
			}
			delete(fields, k.Name)
		}
		for name := range fields {
			t.Errorf("the table does not know %s of %T", name, c.of)
		}
	}
}

func TestDefaultsAreTheLibrarys(t *testing.T) {
	var text strings.Builder
	text.WriteString("version: 1\npolicies:\n  p:\n")
	for _, k := range policyKeys {
		if k.Default != "" {
			fmt.Fprintf(&text, "    %s: %s\n", k.Name, k.Default)
		}
	}
	text.WriteString("routes:\n- queue: q\n  policy: p\n")
	for _, k := range routeKeys {
		if k.Default != "" && k.Name != "policy" {
			fmt.Fprintf(&text, "  %s: %s\n", k.Name, strings.ReplaceAll(k.Default, "<queue>", "q"))
		}
	}
	text.WriteString("  declare:\n    exchange: e\n")
	for _, k := range declareKeys {
		if k.Default != "" {
			fmt.Fprintf(&text, "    %s: %s\n", k.Name, k.Default)
		}
	}
	c, err := Parse("f", []byte(text.String()), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	want := hopback.Route{Queue: "q", Policy: hopback.Policy{Name: "p"}, Declare: &hopback.Declare{Exchange: "e"}}.WithDefaults()
	if got := c.Routes[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("the table's defaults make\n%+v\nthe library's\n%+v", got, want)
	}
}

func TestChoicesWork(t *testing.T) {
	for _, k := range append(slices.Clone(policyKeys), routeKeys...) {
		for _, c := range k.Choices {
			p, r := hopback.Policy{}, hopback.Route{Queue: "q"}
			field := fieldsOf(reflect.ValueOf(&p).Elem())[k.Name]
			if !field.IsValid() {
				field = fieldsOf(reflect.ValueOf(&r).Elem())[k.Name]
			}
			if !field.IsValid() {
				continue // of the file alone: the library has no such field
			}
			field.SetString(c.Value)
			if p.Backoff == hopback.List {
				p.Delays = []time.Duration{time.Second}
			}
			if r.Mechanism == hopback.Ladder {
				r.Ladder = []time.Duration{time.Second}
			}
			if r.Mechanism == hopback.NativeLinear {
				p.Backoff, p.Jitter = hopback.Linear, hopback.NoJitter
			}
			r.Policy = p
			if err := r.Validate(); err != nil {
				t.Errorf("%s: %s: %v", k.Name, c.Value, err)
			}
		}
		for _, c := range k.Refused {
			if err := (hopback.Route{Queue: "q", Mechanism: c.Value}).Validate(); err == nil {
				t.Errorf("%s: %s is refused here, but the library brings it", k.Name, c.Value)
			}
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"base", "max", "max_retries", "jitter"}
	for in, want := range map[string]string{
		"bsae": "base", "mx": "max", "max_retrys": "max_retries", "maxretries": "max_retries", "JITTER": "jitter", "x": "", "colour": "", "": "",
	} {
		if got := nearest(in, known); got != want {
			t.Errorf("nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range bad {
		f.Add([]byte(c.file))
	}
	for _, c := range good {
		f.Add([]byte(c.file))
	}
	if data, err := os.ReadFile(example); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data, nil)
		if (c == nil) == (err == nil) {
			t.Fatalf("%v and %v", c, err)
		}
		var ps Problems
		if err != nil && !errors.As(err, &ps) {
			t.Fatalf("%T is no list of problems", err)
		}
		for _, p := range ps {
			if p.Fix == "" || p.File != "f" || p.Line < 1 {
				t.Fatalf("%+v does not help", p)
			}
		}
		if c == nil {
			return
		}
		for _, r := range c.Routes {
			if err := r.Validate(); err != nil {
				t.Fatalf("a route of an accepted file is refused: %v", err)
			}
		}
	})
}
