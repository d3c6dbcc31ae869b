package native

import (
	"context"
	"fmt"
	"strconv"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// declareClock declares the queue that tells the time: of this connection alone,
// and dead-lettering into itself. AMQP 1.0 has no declare; RabbitMQ takes
// requests in the manner of HTTP, over a pair of links.
func declareClock(ctx context.Context, session *amqp10.Session, queue string) error {
	const node = "/management"
	settled := amqp10.SenderSettleModeSettled
	pair := map[string]any{"paired": true}
	// The receiving half first: RabbitMQ ends the session over a request that
	// comes before the credit for its answer. The other half is a round trip,
	// which leaves go-amqp the time to grant it; should that be too short, the
	// next try has another.
	in, err := session.NewReceiver(ctx, node, &amqp10.ReceiverOptions{
		Name: queue, TargetAddress: node, RequestedSenderSettleMode: &settled, Properties: pair, Credit: 1,
	})
	if err != nil {
		return fmt.Errorf("declare queue %q: %w", queue, translate(err))
	}
	defer in.Close(ctx) //nolint:errcheck // it is not used again
	out, err := session.NewSender(ctx, node, &amqp10.SenderOptions{
		Name: queue, SourceAddress: node, SettlementMode: &settled, Properties: pair,
	})
	if err != nil {
		return fmt.Errorf("declare queue %q: %w", queue, translate(err))
	}
	defer out.Close(ctx) //nolint:errcheck // it is not used again

	to, put, me := "/queues/"+escape(queue), "PUT", "$me"
	err = out.Send(ctx, &amqp10.Message{
		Properties: &amqp10.MessageProperties{MessageID: "declare", To: &to, Subject: &put, ReplyTo: &me},
		Value: map[string]any{
			"durable": true, "exclusive": true, "auto_delete": true,
			"arguments": map[string]any{
				"x-queue-type":              "classic",
				"x-dead-letter-exchange":    "",
				"x-dead-letter-routing-key": queue,
			},
		},
	}, nil)
	if err != nil {
		return fmt.Errorf("declare queue %q: %w", queue, translate(err))
	}
	answer, err := in.Receive(ctx, nil)
	if err != nil {
		return fmt.Errorf("declare queue %q: %w", queue, translate(err))
	}
	status := ""
	if answer.Properties != nil && answer.Properties.Subject != nil {
		status = *answer.Properties.Subject
	}
	if status != "201" && status != "200" {
		code, _ := strconv.Atoi(status) // those of HTTP that matter, 403 and 404, are those of AMQP 0-9-1
		return fmt.Errorf("declare queue %q: %w", queue, &amqp.Error{Code: code, Reason: fmt.Sprint(answer.Value), Server: true})
	}
	return nil
}
