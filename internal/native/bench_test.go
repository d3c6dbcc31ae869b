package native

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/link"
)

// load fills a queue with messages of 512 bytes.
func load(b *testing.B, url string, n int) {
	o := dial091(b, url)
	o.quorum("work")
	body := make([]byte, 512)
	for at := 0; at < n; at += 2000 {
		p := make([]amqp.Publishing, min(2000, n-at))
		for i := range p {
			p[i] = amqp.Publishing{DeliveryMode: 2, MessageId: fmt.Sprint(at + i), Headers: amqp.Table{"tenant": "acme"}, Body: body}
		}
		o.publish("", "work", p...)
	}
	time.Sleep(500 * time.Millisecond)
}

func rate(b *testing.B, n int) { b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s") }

// BenchmarkAccept is the happy path: consume and accept.
func BenchmarkAccept(b *testing.B) {
	url := shared(b)
	load(b, url, b.N)
	r := receive(b, open(b, url), "work", 400)
	b.ResetTimer()
	for range b.N {
		(<-r.Deliveries()).Accept()
	}
	stop(b, r)
	b.StopTimer()
	rate(b, b.N)
}

// BenchmarkDelay settles each message with a delay: a retry.
func BenchmarkDelay(b *testing.B) {
	url := shared(b)
	load(b, url, b.N)
	r := receive(b, open(b, url), "work", 400)
	b.ResetTimer()
	at := time.Now().Add(time.Hour)
	for range b.N {
		(<-r.Deliveries()).Delay(at, record) //nolint:errcheck // it can be kept
	}
	stop(b, r)
	b.StopTimer()
	rate(b, b.N)
}

// BenchmarkPlain is go-amqp alone, with as many goroutines that accept.
func BenchmarkPlain(b *testing.B) {
	for _, workers := range []int{1, 10} {
		b.Run(fmt.Sprint("workers=", workers), func(b *testing.B) {
			url := shared(b)
			load(b, url, b.N)
			uri, err := amqp.ParseURI(url)
			if err != nil {
				b.Fatal(err)
			}
			ctx := context.Background()
			c, err := amqp10.Dial(ctx, url, &amqp10.ConnOptions{HostName: "vhost:" + uri.Vhost})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			s, err := c.NewSession(ctx, nil)
			if err != nil {
				b.Fatal(err)
			}
			r, err := s.NewReceiver(ctx, "/queues/work", &amqp10.ReceiverOptions{Credit: 400})
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			messages := make(chan *amqp10.Message, 400)
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for m := range messages {
						if err := r.AcceptMessage(ctx, m); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for range b.N {
				m, err := r.Receive(ctx, nil)
				if err != nil {
					b.Fatal(err)
				}
				messages <- m
			}
			close(messages)
			all.Wait()
			r.Close(ctx) //nolint:errcheck // the end is measured
			b.StopTimer()
			rate(b, b.N)
		})
	}
}

// BenchmarkAMQP091 is the other transport: consume, and acknowledge in runs.
func BenchmarkAMQP091(b *testing.B) {
	url := shared(b)
	load(b, url, b.N)
	o := dial091(b, url)
	if err := o.ch.Qos(400, 0, false); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	deliveries, err := o.ch.Consume("work", "", false, false, false, false, nil)
	if err != nil {
		b.Fatal(err)
	}
	acks := link.NewAcks(o.ch, make(chan struct{}))
	for range b.N {
		acks.Ack((<-deliveries).DeliveryTag)
	}
	acks.Close()
	o.ch.Qos(1, 0, false) //nolint:errcheck // a question, whose answer comes behind the acknowledgements
	b.StopTimer()
	rate(b, b.N)
}
