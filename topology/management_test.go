package topology

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	oddUser     = "us:er/ü"
	oddPassword = "p@ss/w:rd#?%&+ é"
)

// leaked finds the password in a text, also as a URL would write it.
func leaked(text string) bool {
	for _, p := range []string{oddPassword, url.QueryEscape(oddPassword), url.PathEscape(oddPassword), url.UserPassword("", oddPassword).String()[1:], "w:rd"} {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// fake answers every request with one body and keeps what was asked.
func fake(t *testing.T, status int, body string) (*Management, *[]*http.Request) {
	t.Helper()
	var asked []*http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(srv.Close)
	u, _ := url.Parse(srv.URL)
	u.User = url.UserPassword("user", oddPassword)
	return &Management{URL: u.String() + "/prefix/", Vhost: "é ü #?&/%2F", HTTP: srv.Client()}, &asked
}

func TestManagementEscapes(t *testing.T) {
	m, asked := fake(t, 200, `{"name":"q/1 %2F é#?","durable":true,"arguments":{"x-message-ttl":3000000000,"x-max-length":1.0,"nested":{"a":[1]}}}`)
	q, ok, err := m.queue(t.Context(), "q/1 %2F é#?")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	r := (*asked)[0]
	if want := "/prefix/api/queues/%C3%A9%20%C3%BC%20%23%3F&%2F%252F/q%2F1%20%252F%20%C3%A9%23%3F" + queueColumns; r.RequestURI != want {
		t.Errorf("asked for %s\nwant          %s", r.RequestURI, want)
	}
	if user, password, ok := r.BasicAuth(); !ok || user != "user" || password != oddPassword {
		t.Errorf("as %q with password %q", user, password)
	}
	if r.Method != http.MethodGet {
		t.Errorf("by %s", r.Method)
	}
	want := amqp.Table{"x-message-ttl": int64(3000000000), "x-max-length": 1.0, "nested": amqp.Table{"a": []any{int64(1)}}}
	if d := Compare(want, amqp.Table(q.Args)); len(d) > 0 {
		t.Errorf("read %v: %v", q.Args, d)
	}
}

func TestManagementEmptyArguments(t *testing.T) {
	for _, args := range []string{"{}", "[]", "null"} {
		m, _ := fake(t, 200, `[{"name":"x","type":"fanout","arguments":`+args+`}]`)
		err := each(t.Context(), m, "", func(e exchangeState) {
			if len(e.Args) != 0 {
				t.Errorf("%s was read as %v", args, e.Args)
			}
		}, "exchanges")
		if err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestManagementErrors(t *testing.T) {
	for _, c := range []struct {
		status     int
		body, want string
	}{
		{401, `{"error":"not_authorised","reason":"Login failed"}`, "401 Unauthorized: {\"error\":\"not_authorised\""},
		{500, strings.Repeat("x", 10000), "500 Internal Server Error: " + strings.Repeat("x", 256)},
		{404, `{"error":"Object Not Found"}`, "not there"},
		{200, `{"a":1}`, "want a JSON list"},
		{200, `[{"name":5}]`, "cannot unmarshal"},
		{200, `[{"name":"a"}`, "EOF"},
		{200, ``, "EOF"},
	} {
		m, _ := fake(t, c.status, c.body)
		_, err := MakePlan(t.Context(), nil, m, Topology{Queues: []Queue{{Name: "q"}}})
		if err == nil || !strings.Contains(err.Error(), c.want) || leaked(err.Error()) || len(err.Error()) > 500 {
			t.Errorf("%d %.40s: got %v", c.status, c.body, err)
		}
	}
	m, _ := fake(t, 404, "")
	if _, ok, err := m.queue(t.Context(), "q"); ok || err != nil {
		t.Errorf("a queue that is not there: %t, %v", ok, err)
	}
}

func TestManagementKeepsThePassword(t *testing.T) {
	u := url.URL{Scheme: "http", Host: "127.0.0.1:1", User: url.UserPassword(oddUser, oddPassword)}
	for name, m := range map[string]*Management{
		"refused":      {URL: u.String()},
		"not encoded":  {URL: "http://user:" + oddPassword + "@localhost:15672"},
		"bad port":     {URL: "http://user@localhost:" + oddPassword},
		"bad scheme":   {URL: "ftp://user:" + oddPassword + "@localhost"},
		"no scheme":    {URL: "user:" + oddPassword + "@localhost"},
		"with control": {URL: "http://user:" + oddPassword + "\n@localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := MakePlan(t.Context(), nil, m, Topology{Queues: []Queue{{Name: "q"}}})
			if err == nil || leaked(err.Error()) {
				t.Errorf("got %v", err)
			}
			var log bytes.Buffer
			slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "management", m)
			slog.New(slog.NewTextHandler(&log, nil)).Info("m", "management", *m)
			text := log.String() + fmt.Sprintf("%v %+v %#v %s %v %+v %#v", m, m, m, m, *m, *m, *m)
			if leaked(text) {
				t.Errorf("in a log: %s", text)
			}
		})
	}
	if got := (Management{URL: u.String(), Vhost: "a/b"}).String(); !strings.Contains(got, "127.0.0.1:1") || !strings.Contains(got, `"a/b"`) {
		t.Errorf("says nothing: %s", got)
	}
}

// TestManagementDeadline: a server that never answers.
func TestManagementDeadline(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	defer srv.Close()
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := MakePlan(ctx, nil, &Management{URL: srv.URL}, Topology{Queues: []Queue{{Name: "q"}}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
