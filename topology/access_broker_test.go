package topology_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// as connects with a new account of the given permissions.
func (s *space) as(t *testing.T, configure, write, read string) *amqp.Connection {
	t.Helper()
	name := fmt.Sprintf("user-%s-%x", s.vhost, configure+","+write+","+read)
	if err := s.AddUser(t.Context(), name, "secret", s.vhost, configure, write, read); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	return dial(t, u.String())
}

// accessErrors takes the joined errors apart; all must be of the one kind.
func accessErrors(t *testing.T, err error) []*topology.AccessError {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("got %v", err)
	}
	var all []*topology.AccessError
	for _, err := range joined.Unwrap() {
		var a *topology.AccessError
		var e *amqp.Error
		if !errors.As(err, &a) || !errors.Is(err, topology.ErrAccess) || !errors.As(err, &e) || e.Code != amqp.AccessRefused {
			t.Fatalf("got %v", err)
		}
		all = append(all, a)
	}
	return all
}

func TestNoConfigurePermission(t *testing.T) {
	s := newSpace(t)
	admin, top := s.dial(t), sample()
	const ours = `^(hop\..*|orders|orders\.parked)$` // as docs/topology.md has it
	c := s.as(t, "^$", ours, ours)

	// Nothing is there: an error for each item, and none for the bindings between.
	denied := accessErrors(t, topology.Apply(t.Context(), c, top))
	if len(denied) != len(top.Exchanges)+len(top.Queues) {
		t.Errorf("%d errors for %d items: %v", len(denied), len(top.Exchanges)+len(top.Queues), denied)
	}
	for _, a := range denied {
		if a.Permission != "configure" || a.Resource != fmt.Sprintf("%s %q", a.Kind, a.Name) {
			t.Errorf("%s %q: %s on %s", a.Kind, a.Name, a.Permission, a.Resource)
		}
	}
	if exists(t, admin, "orders") {
		t.Error("the account has declared a queue")
	}

	// An operator makes it: the same account finds it in order.
	if err := topology.Apply(t.Context(), admin, top); err != nil {
		t.Fatal(err)
	}
	for _, opts := range [][]topology.Option{nil, {topology.WithManagement(s.management)}} {
		if err := topology.Apply(t.Context(), c, top, opts...); err != nil {
			t.Fatal(err)
		}
	}
	s.inOrder(t, c, top)

	// Another TTL is seen only over HTTP.
	top.Queues[len(top.Queues)-1].Args["x-message-ttl"] = int64(7)
	if err := topology.Apply(t.Context(), c, top); err != nil {
		t.Fatal(err)
	}
	err := topology.Apply(t.Context(), c, top, topology.WithManagement(s.management))
	var m *topology.MismatchError
	if !errors.As(err, &m) || m.Key != "x-message-ttl" || m.Want != (topology.Value{Type: "int64", Text: "7"}) || m.Have != (topology.Value{Type: "integer", Text: "2000"}) || m.Err != nil {
		t.Errorf("got %v", err)
	}
}

// TestNoPermissionAtAll: from 4.2.7 and 4.3.1 such an account may not even look.
func TestNoPermissionAtAll(t *testing.T) {
	s := newSpace(t)
	admin, top := s.dial(t), sample()
	if err := topology.Apply(t.Context(), admin, top); err != nil {
		t.Fatal(err)
	}
	c := s.as(t, "", "", "")
	p, planErr := topology.MakePlan(t.Context(), c, nil, top)
	if !p.Empty() {
		t.Errorf("what cannot be seen is not missing:\n%v", p)
	}
	if planErr != nil {
		accessErrors(t, planErr)
		t.Logf("%s: no looking without a permission", s.Version())
	}
	for _, a := range accessErrors(t, topology.Apply(t.Context(), c, top)) {
		if a.Kind == "binding" && a.Permission != "write" {
			t.Errorf("%v", a)
		}
	}
	// With the management API nothing of this matters.
	if err := topology.Verify(t.Context(), c, s.management, top); err != nil {
		t.Error(err)
	}
}

func TestPermissionToBind(t *testing.T) {
	s := newSpace(t)
	admin, top := s.dial(t), sample()
	for _, a := range []struct {
		write, read, permission, resource string
	}{
		{`hop\..*|orders.parked`, ".*", "write", `queue "orders"`},
		{".*", `hop\.(error|lost|delay.*)|orders.*`, "read", `exchange "hop.return"`},
	} {
		c := s.as(t, ".*", a.write, a.read)
		before, err := topology.MakePlan(t.Context(), nil, s.management, top)
		if err != nil {
			t.Fatal(err)
		}
		err = topology.Apply(t.Context(), c, top)
		denied := accessErrors(t, err)
		last := denied[len(denied)-1]
		if last.Kind != "binding" || last.Permission != a.permission || last.Resource != a.resource || !strings.Contains(last.Name, "hop.return -> orders") {
			t.Errorf("got %v", err)
		}
		if len(before.Differences) == 0 {
			t.Fatal("nothing was missing")
		}
	}
	// When the binding is there, it is found over HTTP.
	if err := topology.Apply(t.Context(), admin, top); err != nil {
		t.Fatal(err)
	}
	c := s.as(t, "", `hop\..*|orders.parked`, ".*")
	if denied := accessErrors(t, topology.Apply(t.Context(), c, top)); len(denied) != 1 {
		t.Errorf("got %v", denied)
	}
	if err := topology.Apply(t.Context(), c, top, topology.WithManagement(s.management)); err != nil {
		t.Error(err)
	}
}

// TestPermissionForDeadLetters: to make a queue with a dead-letter exchange takes
// write on that exchange.
func TestPermissionForDeadLetters(t *testing.T) {
	s := newSpace(t)
	top := slot("hop.delay.1s", 1000)
	c := s.as(t, ".*", `hop\.delay\..*`, ".*")
	denied := accessErrors(t, topology.Apply(t.Context(), c, top))
	if len(denied) != 1 || denied[0].Permission != "write" || denied[0].Resource != `exchange "hop.return"` || denied[0].Name != "hop.delay.1s" {
		t.Errorf("got %v", denied)
	}
}

// TestOddNames: virtual hosts, passwords and queues with every special character.
func TestOddNames(t *testing.T) {
	const password = "p@ss/w:rd#?%&+ é"
	for i, vhost := range []string{"a/b", "a%2Fb", "é ü #?&"} {
		t.Run(vhost, func(t *testing.T) {
			s := namedSpace(t, vhost, nil)
			user := fmt.Sprintf("odd/user %d", i)
			if err := s.AddUser(t.Context(), user, password, vhost, ".*", ".*", ".*"); err != nil {
				t.Fatal(err)
			}
			if err := s.Put(t.Context(), "/api/users/"+url.PathEscape(user), map[string]any{"password": password, "tags": "management"}); err != nil {
				t.Fatal(err)
			}
			amqpURL, _ := url.Parse(s.url)
			amqpURL.User = url.UserPassword(user, password)
			httpURL, _ := url.Parse(s.ManagementURL())
			httpURL.User = url.UserPassword(user, password)
			c := dial(t, amqpURL.String())
			s.management.URL = httpURL.String()

			const name = "q/1 %2F é#?"
			top := slot(name, 1000).Merge(topology.Topology{Exchanges: []topology.Exchange{{Name: "hop.return", Kind: "fanout"}}})
			if err := topology.Apply(t.Context(), c, top); err != nil {
				t.Fatal(err)
			}
			s.inOrder(t, c, top)
			top.Queues[0].Args["x-message-ttl"] = "1000"
			err := topology.Apply(t.Context(), c, top, topology.WithManagement(s.management))
			var m *topology.MismatchError
			if !errors.As(err, &m) || m.Name != name || m.Have != (topology.Value{Type: "integer", Text: "1000"}) {
				t.Errorf("got %v", err)
			}
			// An account that is refused: the error has no password.
			httpURL.User = url.UserPassword(user, password+"!")
			s.management.URL = httpURL.String()
			_, err = topology.MakePlan(t.Context(), c, s.management, top)
			if err == nil || !strings.Contains(err.Error(), "401") || leaks(err.Error(), password) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// leaks finds a password in a text, also in the forms that a URL gives it.
func leaks(text, password string) bool {
	for _, p := range []string{password, url.QueryEscape(password), url.PathEscape(password), url.UserPassword("", password).String()[1:]} {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// TestLongNames: the broker's answer is cut at 255 bytes; by 4.x at 255
// characters, so that with letters beyond ASCII it does not fit the frame and the
// connection ends with 541.
func TestLongNames(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	names := map[string]string{
		"short":                  strings.Repeat("d", 255),
		strings.Repeat("n", 120): strings.Repeat("d", 120),
		strings.Repeat("n", 255): strings.Repeat("d", 255),
	}
	if strings.HasPrefix(s.Version(), "3.") {
		names[strings.Repeat("ü", 127)] = strings.Repeat("é", 120)
		names["short too"] = strings.Repeat("é", 127)
	}
	for name, long := range names {
		declareQueue(t, c, name, amqp.Table{"x-dead-letter-exchange": long})
		top := topology.Topology{Queues: []topology.Queue{{Name: name, Args: amqp.Table{"x-dead-letter-exchange": "other"}}}}
		err := topology.Apply(t.Context(), c, top)
		var m *topology.MismatchError
		if !errors.As(err, &m) || m.Name != name || m.Key != "x-dead-letter-exchange" || m.Want.Text != "other" {
			t.Errorf("got %v", err)
			continue
		}
		t.Logf("as told: %v", m.Have)
		err = topology.Apply(t.Context(), c, top, topology.WithManagement(s.management))
		if !errors.As(err, &m) || m.Have != (topology.Value{Type: "string", Text: long}) {
			t.Errorf("got %v", err)
		}
	}
}
