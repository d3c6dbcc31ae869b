package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// QueueInfo is what the management API says about a queue that is not ours.
type QueueInfo struct {
	Type   string         // "quorum", "classic" or "stream"
	Args   map[string]any // of its declaration
	Policy map[string]any // what policies add; an argument mostly beats a policy
}

// Queue reads one queue; false when it does not exist. A policy that was set a
// moment ago may not show yet: the API's answer lags by some seconds.
func (m *Management) Queue(ctx context.Context, name string) (QueueInfo, bool, error) {
	var q struct {
		Type   string          `json:"type"`
		Args   map[string]any  `json:"arguments"`
		Policy json.RawMessage `json:"effective_policy_definition"`
	}
	found, err := m.one(ctx, "", &q, "queues", m.vhost(), name)
	if err != nil || !found {
		return QueueInfo{}, false, err
	}
	info := QueueInfo{Type: q.Type, Args: q.Args}
	// No policy is {} or [], by version.
	_ = json.Unmarshal(q.Policy, &info.Policy)
	return info, true, nil
}

// Refuses reports whether the queue can refuse a message, and by which setting:
// a limit on its length whose overflow rejects the publisher. Messages that come
// back to such a queue from a delay stay in their slot when it is full, and block
// it for everyone, 180 s at a time.
func (q QueueInfo) Refuses() (setting string, refuses bool) {
	overflow, _ := q.overflow().(string)
	if !strings.HasPrefix(overflow, "reject-publish") {
		return "", false
	}
	for _, limit := range []string{"max-length", "max-length-bytes"} {
		if v := q.setting(limit); v != nil {
			return fmt.Sprintf("%s %v with overflow %s", limit, v, overflow), true
		}
	}
	return "", false
}

// overflow is what acts: on a quorum queue the policy's beats the argument (3.10.8,
// 4.0.5 and 4.3.6), as with no other setting.
func (q QueueInfo) overflow() any {
	if v, ok := q.Policy["overflow"]; ok && q.Type == "quorum" {
		return v
	}
	return q.setting("overflow")
}

// setting is an argument, or else what a policy says.
func (q QueueInfo) setting(name string) any {
	if v, ok := q.Args["x-"+name]; ok {
		return v
	}
	return q.Policy[name]
}
