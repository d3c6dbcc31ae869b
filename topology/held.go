package topology

import "context"

// Held is how many messages of a queue are neither ready for delivery nor gone:
// its consumers hold them, or they wait in it for their delivery time (RabbitMQ
// 4.3). As of the API's last statistics, which are some seconds old; 0 where there
// is no such queue.
func (m *Management) Held(ctx context.Context, queue string) (int, error) {
	var q struct {
		Unacknowledged int `json:"messages_unacknowledged"`
		Delayed        int `json:"messages_delayed"`
	}
	_, err := m.one(ctx, "?columns=messages_unacknowledged,messages_delayed", &q, "queues", m.vhost(), queue)
	return q.Unacknowledged + q.Delayed, err
}
