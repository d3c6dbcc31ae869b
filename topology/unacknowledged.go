package topology

import "context"

// Unacknowledged is how many messages of a queue its consumers hold, as of the
// API's last statistics, which are some seconds old; 0 where there is no such
// queue.
func (m *Management) Unacknowledged(ctx context.Context, queue string) (int, error) {
	var q struct {
		Messages int `json:"messages_unacknowledged"`
	}
	_, err := m.one(ctx, "?columns=messages_unacknowledged", &q, "queues", m.vhost(), queue)
	return q.Messages, err
}
