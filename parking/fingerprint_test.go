package parking

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// What varies between two failures of one cause.
type variation struct{ *rand.Rand }

func (v variation) from(alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[v.IntN(len(alphabet))]
	}
	return string(b)
}

const (
	lower     = "abcdefghijklmnopqrstuvwxyz"
	hexDigits = "0123456789abcdef"
	crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	podLetter = "bcdfghjklmnpqrstvwxz2456789"
)

func (v variation) n() int { return v.IntN(int(1) << (1 + v.IntN(40))) }
func (v variation) uuid() string {
	h := v.from(hexDigits, 32)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
func (v variation) ulid() string { return "01" + v.from(crockford, 24) }
func (v variation) pod() string  { return v.from(podLetter, 9) + "4-" + v.from(podLetter, 4) + "x" }
func (v variation) ip() string {
	return fmt.Sprintf("%d.%d.%d.%d", v.IntN(256), v.IntN(256), v.IntN(256), v.IntN(256))
}

func (v variation) took() time.Duration {
	return time.Duration(v.Int64N(int64(100*time.Minute))) >> v.IntN(40)
}
func (v variation) at() time.Time { return time.Unix(1_700_000_000+v.Int64N(1e8), v.Int64N(1e9)) }

// Failures of many causes, as programs in several languages write them: each
// cause reads as one, and no two as the same.
func TestTenThousandFailuresReadAsTheirCauses(t *testing.T) {
	v := variation{rand.New(rand.NewPCG(5, 5))}
	causes := map[string]func() string{
		"order": func() string { return fmt.Sprintf("order %d: card refused", v.n()) },
		"amount": func() string {
			return fmt.Sprintf("amount %d.%02d exceeds the limit of %d,000.00", v.n(), v.IntN(100), 1+v.IntN(9))
		},
		"dial": func() string {
			return fmt.Sprintf("dial tcp %s:%d: connect: connection refused", v.ip(), v.IntN(65536))
		},
		"reset": func() string {
			return fmt.Sprintf("read tcp %s:%d->%s:5432: read: connection reset by peer", v.ip(), v.IntN(65536), v.ip())
		},
		"dial6":    func() string { return fmt.Sprintf("dial tcp [2001:db8::%x]:443: i/o timeout", 1+v.IntN(65535)) },
		"route6":   func() string { return fmt.Sprintf("no route to 2001:db8:%x::%x", 1+v.IntN(65535), 1+v.IntN(65535)) },
		"deadline": func() string { return fmt.Sprintf("payment: no answer within %s", v.took()) },
		"customer": func() string { return fmt.Sprintf("customer %s has no address", v.uuid()) },
		"upper":    func() string { return fmt.Sprintf("invoice {%s} is closed", strings.ToUpper(v.uuid())) },
		"mongo": func() string {
			return fmt.Sprintf(`E11000 duplicate key error: _id: ObjectId("%s")`, v.from(hexDigits, 23)+"7")
		},
		"commit": func() string { return fmt.Sprintf("no such commit: %s1", v.from(hexDigits, 39)) },
		"ulid":   func() string { return fmt.Sprintf("event %s was seen before", v.ulid()) },
		"pod":    func() string { return fmt.Sprintf("lookup stock-%s on 10.96.0.10:53: no such host", v.pod()) },
		"mail": func() string {
			return fmt.Sprintf("550 no mailbox %s.%s@%s.example.com", v.from(lower, 6), v.from(lower, 5), v.from(lower, 4))
		},
		"pointer": func() string { return fmt.Sprintf("unexpected fault address 0x%x", v.Uint64()) },
		"time":    func() string { return fmt.Sprintf("token expired at %s", v.at().UTC().Format(time.RFC3339Nano)) },
		"clock":   func() string { return fmt.Sprintf("[%s] pool is exhausted", v.at().Format(time.DateTime)) },
		"path": func() string {
			return fmt.Sprintf("open /var/spool/orders/%s/%08d.json: no such file or directory", v.at().Format("2006/01/02"), v.IntN(1e8))
		},
		"url": func() string {
			return fmt.Sprintf("Get \"https://api.example.com/v1/orders/%d?page=%d\": EOF", v.n(), v.IntN(50))
		},
		"jwt": func() string {
			return "signature is invalid: eyJhbGciOiJIUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(v.uuid())) + "." + base64.RawURLEncoding.EncodeToString([]byte(v.ulid()))
		},
		"float": func() string { return fmt.Sprintf("rate %v is not finite", v.Float64()*1e-5) },
		"short": func() string {
			return fmt.Sprintf("voucher %s is used up", []string{"K7Q9ZP", "A1B2C3", "9X8Y7", "Z3Z3Z3", "q1w2e3r4"}[v.IntN(5)])
		},
		"stripe": func() string {
			return "no such customer: " + []string{"cus_NffrFeUfNV2Hib", "cus_9s6XKzkNRiz8i3", "cus_QtR7pLx2ZbVn4K"}[v.IntN(3)]
		},
		"python": func() string {
			return fmt.Sprintf("Traceback (most recent call last):\n  File \"/app/w.py\", line %d, in handle\n    stock.take(%d)\nStockError: no stock of %d\n", v.IntN(900), v.n(), v.n())
		},
		"python too": func() string {
			return fmt.Sprintf("Traceback (most recent call last):\n  File \"/app/w.py\", line %d, in handle\n    stock.take(%d)\nKeyError: 'sku'\n", v.IntN(900), v.n())
		},
		"java": func() string {
			return fmt.Sprintf("Order %d is locked\n\tat com.example.Orders.lock(Orders.java:%d)", v.n(), v.IntN(900))
		},
		"multierror": func() string {
			return fmt.Sprintf("%d errors occurred:\n\t* no stock of %d\n\t* late\n\n", 2+v.IntN(8), v.n())
		},
		"other multierror": func() string {
			return fmt.Sprintf("%d errors occurred:\n\t* no address for %d\n\t* late\n\n", 2+v.IntN(8), v.n())
		},
		"404":      func() string { return fmt.Sprintf("POST /orders/%d: HTTP 404 after %s", v.n(), v.took()) },
		"503":      func() string { return fmt.Sprintf("POST /orders/%d: HTTP 503 after %s", v.n(), v.took()) },
		"status":   func() string { return fmt.Sprintf(`unexpected status: 409 for order %d`, v.n()) },
		"status 2": func() string { return fmt.Sprintf(`unexpected status: 422 for order %d`, v.n()) },
		"unique":   func() string { return fmt.Sprintf("ERROR: insert of %d failed (SQLSTATE 23505)", v.n()) },
		"deadlock": func() string { return fmt.Sprintf("ERROR: insert of %d failed (SQLSTATE 40P01)", v.n()) },
		"exit 1":   func() string { return fmt.Sprintf("job %d: exit status 1", v.n()) },
		"exit 137": func() string { return fmt.Sprintf("job %d: exit status 137", v.n()) },
		"column":   func() string { return `column "price" does not exist` },
		"column 2": func() string { return `column "name" does not exist` },
		"class":    func() string { return "OAuth2AuthenticationException" },
		"class 2":  func() string { return "OAuth2AuthorizationException" },
		"module":   func() string { return fmt.Sprintf("thread %d panicked in a::b", v.IntN(99)) },
		"module 2": func() string { return fmt.Sprintf("thread %d panicked in c::d", v.IntN(99)) },
		"charset":  func() string { return "cannot convert latin1 to utf8mb4" },
		"digest":   func() string { return "unknown digest sha256" },
		"words":    func() string { return "no stock" },
	}
	names := make([]string, 0, len(causes))
	for name := range causes {
		names = append(names, name)
	}
	slices.Sort(names)
	found := map[string]string{} // by fingerprint
	of := map[string]string{}    // by cause
	for i := range 10_000 {
		name := names[i%len(names)]
		text := causes[name]()
		m := Message{Error: text}
		f := m.Fingerprint()
		if other, there := found[f]; there && other != name {
			t.Fatalf("%s and %s read as one: %q", name, other, f)
		}
		if first, there := of[name]; there && first != f {
			t.Errorf("%s reads as %q and as %q, from %q", name, first, f, text)
			continue
		}
		found[f], of[name] = name, f
	}
	if len(found) != len(causes) {
		t.Errorf("%d fingerprints of %d causes", len(found), len(causes))
	}
}

func TestFoldTakesOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"\n\n  late\n":   "late",
		"failed:":        "failed:",
		"failed:\n\n\tx": "failed: x",
		"Traceback (most recent call last):\n  File \"a.py\", line 7, in f\n    cut": "Traceback (most recent call last): File \"a.py\", line <n>, in f",
		"took 1m30.5s and 250µs and 1h2m3s and 5 ms":                                 "took <n>s and <n>s and <n>s and <n> ms",
		"1.5e-07 of 1e-7 and -3":                                                     "<n> of <n> and -<n>",
		"job 223344-55667 and b2b, i18n, log4j2, v2beta1, x86_64":                    "job <n>-<n> and b<n>b, i<n>n, log<n>j<n>, v<n>beta<n>, x<n>_<n>",
		"git abc1def and ab3f250e":                                                   "git <id> and <id>",
		"HTTP/1.1 503: busy; {\"status\":404}; status_code=500; error code: 1213":    "HTTP/1.1 503: busy; {\"status\":404}; status_code=500; error code: 1213",
		"order status 12345, zip code 90210":                                         "order status <n>, zip code <n>",
	} {
		if got := Fold(in); got != want {
			t.Errorf("Fold(%q)\n got %q\nwant %q", in, got, want)
		}
	}
}
