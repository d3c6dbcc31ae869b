package main

import (
	"strings"
	"testing"

	"github.com/hopback/hopback/cmd/hopback/internal/doctor"
)

func TestPrintFindings(t *testing.T) {
	var out strings.Builder
	s := &doctor.Snapshot{Product: "RabbitMQ", Version: "4.3.6", Vhost: "a/b", Queues: []*doctor.Queue{{Name: "orders"}}}
	printFindings(&out, s, []doctor.Finding{
		{Severity: doctor.Error, Check: "dlx-missing", Kind: "queue", Name: "orders\x1b[31m", Reason: strings.Repeat("because ", 20), Fix: strings.Repeat("create ", 16)},
		{Severity: doctor.Note, Check: "not-seen", Kind: "broker", Reason: "it was not", Fix: "look"},
	})
	want := `RabbitMQ 4.3.6, virtual host "a/b", 1 queue

SEVERITY  WHERE              CHECK
error     queue orders [31m  dlx-missing
          because because because because because because because because because because because
          because because because because because because because because because
          fix: create create create create create create create create create create create create
               create create create create

note      broker             not-seen
          it was not
          fix: look

1 error, 0 warnings, 1 note; more about each check in docs/doctor.md
`
	if got := out.String(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}
