module github.com/hopback/hopback/integration

go 1.26

replace github.com/hopback/hopback => ../

require (
	github.com/google/go-cmp v0.7.0
	github.com/hopback/hopback v0.0.0-00010101000000-000000000000
	github.com/rabbitmq/amqp091-go v1.16.0
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)

require github.com/Azure/go-amqp v1.7.0
