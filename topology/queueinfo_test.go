package topology_test

import (
	"testing"

	"github.com/hopback/hopback/topology"
)

// Which overflow acts depends on the type of the queue, as measured: see the tests
// of hopback doctor.
func TestRefuses(t *testing.T) {
	type settings = map[string]any
	limit := settings{"x-max-length": 1}
	for _, tt := range []struct {
		name         string
		kind         string
		args, policy settings
		want         string
	}{
		{"no limit", "quorum", settings{"x-overflow": "reject-publish"}, nil, ""},
		{"drop-head", "quorum", limit, nil, ""},
		{"by arguments", "quorum", settings{"x-max-length": 1, "x-overflow": "reject-publish"}, nil, "max-length 1 with overflow reject-publish"},
		{"by policy", "classic", limit, settings{"overflow": "reject-publish"}, "max-length 1 with overflow reject-publish"},
		{"dlx", "classic", settings{"x-max-length-bytes": 9, "x-overflow": "reject-publish-dlx"}, nil, "max-length-bytes 9 with overflow reject-publish-dlx"},
		{"a quorum queue's policy beats its argument", "quorum", settings{"x-max-length": 1, "x-overflow": "drop-head"}, settings{"overflow": "reject-publish"}, "max-length 1 with overflow reject-publish"},
		{"the other way round", "quorum", settings{"x-max-length": 1, "x-overflow": "reject-publish"}, settings{"overflow": "drop-head"}, ""},
		{"a classic queue's argument beats its policy", "classic", settings{"x-max-length": 1, "x-overflow": "drop-head"}, settings{"overflow": "reject-publish"}, ""},
	} {
		got, refuses := topology.QueueInfo{Type: tt.kind, Args: tt.args, Policy: tt.policy}.Refuses()
		if got != tt.want || refuses != (tt.want != "") {
			t.Errorf("%s: %q, %t; want %q", tt.name, got, refuses, tt.want)
		}
	}
}
