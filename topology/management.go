package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Management reads a broker's management API (the plugin rabbitmq_management),
// which shows what AMQP 0-9-1 does not: arguments, exchange types and bindings.
// It only reads, but for the methods on policies and bindings that say otherwise. The account needs the tag "management" and access to the
// virtual host. The password is in no error, and in no log that formats the value.
type Management struct {
	// URL is the root of the API without the "/api", with the account, for example
	// http://guest:guest@localhost:15672. Special characters of the user name and
	// the password are percent-encoded, as [url.UserPassword] does it.
	URL string
	// Vhost is the virtual host by its plain name, not encoded: "/", "a/b". Empty
	// means "/".
	Vhost string
	// HTTP is the client to use, for example for a private CA. Nil means one with a
	// time limit of 30 s a request.
	HTTP *http.Client
}

var defaultHTTP = &http.Client{Timeout: 30 * time.Second}

// String is the URL without the password.
func (m Management) String() string {
	u, err := url.Parse(m.URL)
	if err != nil {
		return "management API (unreadable URL)"
	}
	return fmt.Sprintf("management API %s, vhost %q", u.Redacted(), m.vhost())
}

// GoString keeps the password out of %#v.
func (m Management) GoString() string { return "topology.Management{" + m.String() + "}" }

// LogValue keeps the password out of structured logs.
func (m Management) LogValue() slog.Value { return slog.StringValue(m.String()) }

func (m *Management) vhost() string {
	if m.Vhost == "" {
		return "/"
	}
	return m.Vhost
}

// errNotThere is the answer 404.
var errNotThere = errors.New("not there")

// send makes a request for the resource whose path has the given segments, which
// are escaped here, and gives the path for errors. doing is a word for these.
func (m *Management) send(ctx context.Context, doing, method, query string, body io.Reader, segments ...string) (*http.Response, func(error) error, error) {
	base, err := url.Parse(strings.TrimRight(m.URL, "/"))
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		// Not the parser's words: they may quote the password.
		return nil, nil, errors.New("management API: the URL cannot be read: want http://user:password@host:port, with special characters of the password percent-encoded")
	}
	user := base.User
	base.User = nil
	path := "/api"
	for _, s := range segments {
		path += "/" + url.PathEscape(s)
	}
	fail := func(err error) error { return fmt.Errorf("management API: %s %s: %w", doing, path, err) }
	req, err := http.NewRequestWithContext(ctx, method, base.String()+path+query, body)
	if err != nil {
		return nil, nil, fail(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	client := m.HTTP
	if client == nil {
		client = defaultHTTP
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, fail(err)
	}
	return res, fail, nil
}

// get reads a resource, and hands the body to read.
func (m *Management) get(ctx context.Context, query string, read func(*json.Decoder) error, segments ...string) error {
	res, fail, err := m.send(ctx, "read", http.MethodGet, query, nil, segments...)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 256))
		if res.StatusCode == http.StatusNotFound {
			return fail(errNotThere)
		}
		return fail(fmt.Errorf("answered %s: %s", res.Status, strings.TrimSpace(string(body))))
	}
	d := json.NewDecoder(res.Body)
	d.UseNumber()
	if err := read(d); err != nil {
		return fail(err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the connection is used again
	return nil
}

// one reads a single object, and false when it is not there.
func (m *Management) one(ctx context.Context, query string, into any, segments ...string) (bool, error) {
	err := m.get(ctx, query, func(d *json.Decoder) error { return d.Decode(into) }, segments...)
	if errors.Is(err, errNotThere) {
		return false, nil
	}
	return err == nil, err
}

// each reads a list, an element at a time: a broker may hold 100,000 queues, and
// we want to keep a few of them.
func each[T any](ctx context.Context, m *Management, query string, keep func(T), segments ...string) error {
	err := m.get(ctx, query, func(d *json.Decoder) error {
		if t, err := d.Token(); err != nil || t != json.Delim('[') {
			return fmt.Errorf("want a JSON list, got %v (%v)", t, err)
		}
		for d.More() {
			var v T
			if err := d.Decode(&v); err != nil {
				return err
			}
			keep(v)
		}
		_, err := d.Token()
		return err
	}, segments...)
	if errors.Is(err, errNotThere) {
		return fmt.Errorf("%w: is there a vhost %q, and may the account see it?", err, m.vhost())
	}
	return err
}

// The columns keep the answers small. With these, brokers read their own tables
// and no statistics, so the lists are neither cached nor late.
const (
	exchangeColumns = "?columns=name,type,durable,auto_delete,internal,arguments"
	queueColumns    = "?disable_stats=true&columns=name,durable,auto_delete,exclusive,arguments"
)

// exchangeState, queueState and bindingState are what a broker has.
type exchangeState struct {
	Name       string `json:"name"`
	Kind       string `json:"type"`
	Durable    bool   `json:"durable"`
	AutoDelete bool   `json:"auto_delete"`
	Internal   bool   `json:"internal"`
	Args       table  `json:"arguments"`
}

type queueState struct {
	Name       string `json:"name"`
	Durable    bool   `json:"durable"`
	AutoDelete bool   `json:"auto_delete"`
	Exclusive  bool   `json:"exclusive"`
	Args       table  `json:"arguments"`
}

type bindingState struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Type        string `json:"destination_type"`
	Key         string `json:"routing_key"`
	Args        table  `json:"arguments"`
	// Properties is what the API calls the binding among those with the same ends.
	Properties string `json:"properties_key"`
}

func (b bindingState) binding() Binding {
	return Binding{Source: b.Source, Destination: b.Destination, ToExchange: b.Type == "exchange", Key: b.Key, Args: amqp.Table(b.Args)}
}

// table reads a JSON object with its numbers as they are written. Some versions
// write an empty one as [].
type table amqp.Table

func (t *table) UnmarshalJSON(data []byte) error {
	if string(data) == "[]" {
		*t = nil
		return nil
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	return d.Decode((*map[string]any)(t))
}

func (m *Management) exchange(ctx context.Context, name string) (e exchangeState, ok bool, err error) {
	ok, err = m.one(ctx, exchangeColumns, &e, "exchanges", m.vhost(), name)
	return e, ok, err
}

func (m *Management) queue(ctx context.Context, name string) (q queueState, ok bool, err error) {
	ok, err = m.one(ctx, queueColumns, &q, "queues", m.vhost(), name)
	return q, ok, err
}

// defaultQueueType is what those of the queues that name no x-queue-type become,
// and "" when all of them do. From the list, because only administrators may read
// a single virtual host.
func (m *Management) defaultQueueType(ctx context.Context, queues ...Queue) (string, error) {
	if !slices.ContainsFunc(queues, func(q Queue) bool { _, ok := q.Args[queueType]; return !ok && !q.User }) {
		return "", nil
	}
	type vhost struct {
		Name    string `json:"name"`
		Default any    `json:"default_queue_type"`
	}
	found, def := false, classic
	err := each(ctx, m, "?columns=name,default_queue_type", func(v vhost) {
		if v.Name == m.vhost() {
			found = true
			if s, ok := v.Default.(string); ok && s != "" && s != "undefined" { // "undefined" from 3.10
				def = s
			}
		}
	}, "vhosts")
	if err == nil && !found {
		err = fmt.Errorf("management API: the account sees no vhost %q", m.vhost())
	}
	return def, err
}

func (m *Management) hasBinding(ctx context.Context, b Binding) (found bool, err error) {
	kind := "q"
	if b.ToExchange {
		kind = "e"
	}
	err = each(ctx, m, "", func(s bindingState) {
		found = found || s.binding().identity() == b.identity()
	}, "bindings", m.vhost(), "e", b.Source, kind, b.Destination)
	return found, err
}
