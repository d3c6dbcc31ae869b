package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
)

// The vectors are written as the library's tests read them, and have the form that
// their schema describes.
func TestConformanceVectors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "vectors")
	var out, errs bytes.Buffer
	if code := run([]string{"conformance", "vectors", "--dir", dir, "-o", "json"}, &out, &errs); code != exitDone {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	const source = "../../attempt/testdata"
	entries, err := os.ReadDir(source)
	if err != nil {
		t.Fatal(err)
	}
	schema := readSchema(t, filepath.Join(dir, "schema.json"))
	checked := 0
	for _, e := range entries {
		if e.IsDir() { // what fuzzing found
			continue
		}
		want, err := os.ReadFile(filepath.Join(source, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil || !bytes.Equal(want, got) {
			t.Errorf("%s is not written as it is: %v", e.Name(), err)
		}
		if !strings.Contains(out.String(), `"`+e.Name()+`"`) {
			t.Errorf("the output does not tell of %s", e.Name())
		}
		if filepath.Ext(e.Name()) != ".json" || e.Name() == "schema.json" {
			continue
		}
		checked++
		var v any
		if err := json.Unmarshal(got, &v); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
	}
	if checked < 10 {
		t.Errorf("%d files checked, want ten or more", checked)
	}
	for _, bad := range []string{
		`{"version": 2, "about": "a", "cases": [{"name": "n", "table": {}, "size": 4}]}`,
		`{"version": 1, "about": "a", "cases": [{"name": "n", "tabel": {}, "size": 4}]}`,
		`{"version": 1, "about": "a", "cases": [{"name": "n", "table": {"k": {"type": "int8", "value": 3}}, "size": 4}]}`,
		`{"version": 1, "about": "a", "cases": []}`,
	} {
		var v any
		if err := json.Unmarshal([]byte(bad), &v); err != nil {
			t.Fatal(err)
		}
		if schema.Validate(v) == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}

func readSchema(t *testing.T, file string) *jsonschema.Resolved {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A consumer that rejects everything passes one case and fails another. It runs
// elsewhere: the command waits for it.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	clearEnvironment(t)
	for name, tt := range map[string]struct {
		args []string
		code int
		out  []string
	}{
		"it fails": {[]string{"--case", "handle", "--case", "reject", "--patience", "3s"}, exitDiffers, []string{
			"failed   handle", "passed   reject", "    change    ", "level basic, hop-conformance.quorum, a quorum queue: 1 passed, 1 failed, 0 skipped",
		}},
		"it fails, as JSON": {[]string{"--case", "handle", "--case", "reject", "--patience", "3s", "-o", "json"}, exitDiffers, []string{
			`"failed": 1,`, `"case": "handle",`, `"actual": "`, `"queue_type": "quorum",`,
		}},
		"it passes":                {[]string{"--case", "reject", "--case", "crash-once"}, exitDone, []string{"passed   reject", "skipped  crash-once", "1 passed, 0 failed, 1 skipped"}},
		"a case that there is not": {[]string{"--case", "rejekt"}, exitError, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			url := b.Vhost(t)
			rejectEverything(t, url, "hop-conformance.quorum")
			var out, errs bytes.Buffer
			code := run(append([]string{"conformance", "--url", url, "--type", "quorum"}, tt.args...), &out, &errs)
			if code != tt.code {
				t.Errorf("exit code %d, want %d: %s", code, tt.code, &errs)
			}
			for _, want := range tt.out {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output lacks %q:\n%s", want, &out)
				}
			}
			if strings.Contains(out.String()+errs.String(), "guest:guest") {
				t.Error("the output has the password in it")
			}
		})
	}
}

func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, name := range []string{"HOPBACK_BROKER_URL", "HOPBACK_MANAGEMENT_URL", "HOPBACK_BROKER_USERNAME", "HOPBACK_BROKER_PASSWORD"} {
		t.Setenv(name, "")
	}
}

// rejectEverything consumes from a queue as soon as it is there, until the test ends.
func rejectEverything(t *testing.T, url, queue string) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !conn.IsClosed() {
			ch, err := conn.Channel()
			if err != nil {
				return
			}
			deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
			if err != nil {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			for d := range deliveries {
				_ = d.Reject(false)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-ended
	})
}
