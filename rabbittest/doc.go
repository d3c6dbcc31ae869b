// Package rabbittest starts a private, real RabbitMQ broker for a test.
package rabbittest
