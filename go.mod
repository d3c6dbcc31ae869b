module github.com/hopback/hopback

go 1.26

require (
	github.com/Azure/go-amqp v1.7.0
	github.com/rabbitmq/amqp091-go v1.16.0
)
