package topology

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// policyAPI is a management API with one queue and some policies.
type policyAPI struct {
	queue    string // JSON, or "" for none
	policies string // JSON
	status   int    // of a PUT

	path, body string // of the last PUT
	puts       int
}

func (a *policyAPI) start(t *testing.T) *Management {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			text, _ := io.ReadAll(r.Body)
			a.path, a.body = r.RequestURI, string(text)
			a.puts++
			w.WriteHeader(a.status)
			fmt.Fprint(w, `{"error":"bad_request"}`)
		case strings.HasPrefix(r.URL.Path, "/api/queues/") && a.queue == "":
			w.WriteHeader(http.StatusNotFound)
		case strings.HasPrefix(r.URL.Path, "/api/queues/"):
			fmt.Fprint(w, a.queue)
		default:
			fmt.Fprint(w, a.policies)
		}
	}))
	t.Cleanup(srv.Close)
	u, _ := url.Parse(srv.URL)
	u.User = url.UserPassword(oddUser, oddPassword)
	return &Management{URL: u.String(), Vhost: "a/b", HTTP: srv.Client()}
}

var somePolicy = Policy{
	Name: "hop.native-linear.orders", Queue: "orders", Priority: 100, ApplyTo: "quorum_queues",
	Definition: map[string]any{"delivery-limit": int64(5), "overflow": "reject-publish"},
}

const ourPolicy = `{"name":"hop.native-linear.orders","pattern":"^orders$","apply-to":"quorum_queues","priority":100,"definition":{"delivery-limit":5,"overflow":"reject-publish"}}`

func TestPlanPolicy(t *testing.T) {
	const quorum = `{"type":"quorum","arguments":{"x-queue-type":"quorum"},"effective_policy_definition":[]}`
	other := func(pattern, applyTo string, priority int) string {
		return fmt.Sprintf(`{"name":"other","pattern":%q,"apply-to":%q,"priority":%d,"definition":{}}`, pattern, applyTo, priority)
	}
	for _, c := range []struct {
		name, queue, policies string
		want                  string // "state key, state key"
		words                 string // in one of the lines
	}{
		{"none", quorum, `[]`, "missing ", ""},
		{"in place", quorum, `[` + ourPolicy + `]`, "", ""},
		{"other limit", quorum, `[` + strings.Replace(ourPolicy, ":5", ":6", 1) + `]`, "differs delivery-limit", "integer 6"},
		{"a number as a string", quorum, `[` + strings.Replace(ourPolicy, ":5", `:"5"`, 1) + `]`, "differs delivery-limit", "types differ"},
		{"other pattern", quorum, `[` + strings.Replace(ourPolicy, "^orders$", "^orders", 1) + `]`, "differs pattern", ""},
		{"one setting more", quorum, `[` + strings.Replace(ourPolicy, `:5`, `:5,"max-length":9`, 1) + `]`, "differs max-length", ""},
		{"other priority", quorum, `[` + strings.Replace(ourPolicy, "100", "99", 1) + `]`, "differs priority", ""},
		{"higher beside", quorum, `[` + ourPolicy + `,` + other(".*", "all", 200) + `]`, "conflict priority", "this one would have no effect"},
		{"lower beside", quorum, `[` + ourPolicy + `,` + other("^ord", "queues", 0) + `]`, "conflict priority", "it would have no effect any more"},
		{"equal beside", quorum, `[` + ourPolicy + `,` + other("", "quorum_queues", 100) + `]`, "conflict priority", "chance"},
		{"another queue's", quorum, `[` + ourPolicy + `,` + other("^orders2", "queues", 200) + `]`, "", ""},
		{"for exchanges", quorum, `[` + ourPolicy + `,` + other(".*", "exchanges", 200) + `]`, "", ""},
		{"for classic queues", quorum, `[` + ourPolicy + `,` + other(".*", "classic_queues", 200) + `]`, "", ""},
		{"for streams", quorum, `[` + ourPolicy + `,` + other(".*", "streams", 200) + `]`, "", ""},
		{"a pattern of Perl's", quorum, `[` + ourPolicy + `,` + other("^(?!dead)", "queues", 200) + `]`, "unknown pattern", "is not understood"},
		{"which is in effect", strings.Replace(quorum, "{", `{"policy":"other",`, 1), `[` + ourPolicy + `,` + other("^(?!dead)", "queues", 200) + `]`, "conflict priority", ""},
		{"no queue", "", `[` + ourPolicy + `]`, "missing ", "there is no queue"},
		{"a classic queue", `{"type":"classic","arguments":{}}`, `[` + ourPolicy + `]`, "conflict type", "another type"},
		{"an argument", `{"type":"quorum","arguments":{"x-delivery-limit":7}}`, `[` + ourPolicy + `]`, "conflict delivery-limit", "an argument beats a policy"},
		{"the same argument", `{"type":"quorum","arguments":{"x-delivery-limit":5}}`, `[` + ourPolicy + `]`, "", ""},
		{"a limit that drops", `{"type":"quorum","arguments":{"x-max-length":10}}`, `[` + ourPolicy + `]`, "conflict overflow", "refuse new ones"},
		{
			"an operator's", `{"type":"quorum","arguments":{},"policy":"hop.native-linear.orders","operator_policy":"limits","effective_policy_definition":{"delivery-limit":3,"overflow":"reject-publish"}}`,
			`[` + ourPolicy + `]`, "conflict delivery-limit", `operator policy "limits"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := (&policyAPI{queue: c.queue, policies: c.policies}).start(t)
			p, err := m.PlanPolicy(t.Context(), somePolicy)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range p.Differences {
				if d.Kind != "policy" || d.Name != somePolicy.Name {
					t.Errorf("%+v", d)
				}
				got = append(got, d.State+" "+d.Key)
			}
			if s := strings.Join(got, ", "); s != c.want {
				t.Errorf("got %q, want %q\n%s", s, c.want, p)
			}
			if !strings.Contains(p.String(), c.words) {
				t.Errorf("%q is not in\n%s", c.words, p)
			}
			if err := m.VerifyPolicy(t.Context(), somePolicy); errors.Is(err, ErrDrift) != !p.Empty() {
				t.Errorf("verify: %v", err)
			}
		})
	}
}

func TestApplyPolicy(t *testing.T) {
	const quorum = `{"type":"quorum","arguments":{}}`
	for _, c := range []struct {
		name string
		api  policyAPI
		puts int
		is   error
	}{
		{"missing", policyAPI{queue: quorum, policies: `[]`, status: 201}, 1, nil},
		{"differs", policyAPI{queue: quorum, policies: `[` + strings.Replace(ourPolicy, ":5", ":6", 1) + `]`, status: 204}, 1, nil},
		{"in place", policyAPI{queue: quorum, policies: `[` + ourPolicy + `]`, status: 500}, 0, nil},
		{"conflict", policyAPI{queue: quorum, policies: `[{"name":"o","pattern":"","apply-to":"all","priority":0,"definition":{}}]`, status: 201}, 0, ErrConflict},
		{"no queue", policyAPI{policies: `[]`, status: 201}, 0, ErrMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := c.api.start(t)
			err := m.ApplyPolicy(t.Context(), somePolicy)
			if !errors.Is(err, c.is) || c.is == nil && err != nil {
				t.Errorf("%v, want %v", err, c.is)
			}
			if c.api.puts != c.puts {
				t.Errorf("%d writes, want %d", c.api.puts, c.puts)
			}
		})
	}
	api := policyAPI{queue: quorum, policies: `[]`, status: 201}
	m := api.start(t)
	if err := m.ApplyPolicy(t.Context(), somePolicy); err != nil {
		t.Fatal(err)
	}
	if want := "/api/policies/a%2Fb/hop.native-linear.orders"; api.path != want {
		t.Errorf("wrote %s, want %s", api.path, want)
	}
	if want := `{"apply-to":"quorum_queues","definition":{"delivery-limit":5,"overflow":"reject-publish"},"pattern":"^orders$","priority":100}`; api.body != want {
		t.Errorf("wrote %s\nwant  %s", api.body, want)
	}
	for _, status := range []int{400, 401, 403} {
		api.status = status
		err := m.ApplyPolicy(t.Context(), somePolicy)
		if err == nil || leaked(err.Error()) {
			t.Errorf("status %d: %v", status, err)
		}
		if hint := strings.Contains(fmt.Sprint(err), "policymaker"); hint != (status != 400) {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

func TestPolicyValidate(t *testing.T) {
	def := map[string]any{"a": "b"}
	for name, p := range map[string]Policy{
		"no name":       {Queue: "q", Definition: def},
		"no queue":      {Name: "p", Definition: def},
		"no definition": {Name: "p", Queue: "q"},
		"a Go int":      {Name: "p", Queue: "q", Definition: map[string]any{"delivery-limit": 5}},
	} {
		if p.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if got := (Policy{Queue: `a.b*c[d]\e $`}).Pattern(); got != `^a\.b\*c\[d\]\\e \$$` {
		t.Errorf("pattern %s", got)
	}
}
