package topology

import amqp "github.com/rabbitmq/amqp091-go"

// Comparisons are the pairs of the table test, for the broker tests.
var Comparisons []struct {
	Name       string
	Want, Have amqp.Table
}

func init() {
	for _, c := range comparisons {
		Comparisons = append(Comparisons, struct {
			Name       string
			Want, Have amqp.Table
		}{c.name, c.want, c.have})
	}
}
