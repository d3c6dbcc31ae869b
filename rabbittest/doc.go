// Package rabbittest starts a private, real RabbitMQ for a test, and breaks it
// on demand.
//
// Code that retries is code about failures: a broker that restarts, a connection
// that dies between a confirm and an ack, a memory alarm that blocks publishers.
// No fake shows them faithfully, so this package runs the real server. It needs
// no container engine and no root; a RabbitMQ that is installed is enough.
//
//	func TestOrders(t *testing.T) {
//		b := rabbittest.Start(t)       // stopped and removed when the test ends
//		conn, err := amqp.Dial(b.URL())
//		...
//		b.Kill(t.Context())            // as a crash would
//		b.Start(t.Context())           // same data, same ports
//	}
//
// # A broker of one's own
//
// Every broker listens on free ports of 127.0.0.1 and keeps its data, its Erlang
// cookie and its port mapper (epmd) to itself. Any number run side by side, of
// different versions too, beside a RabbitMQ that the machine already runs, which
// is never touched. [Broker.Close] leaves no process and no file; when the
// process that started a broker is killed instead, a watchdog does the same.
//
// A start takes about four seconds with 4.0 and later, six with 3.10, on two
// processors. Where that is too long for every test, [Shared] gives all tests of
// a package one broker, and [Broker.Vhost] gives each of them a virtual host:
//
//	b := rabbittest.Shared(t)
//	url := b.Vhost(t) // fresh and empty, in a few milliseconds
//
// Programs that are no tests use [Run].
//
// # Which RabbitMQ
//
// [Options].Version, else the environment variable HOPBACK_TEST_BROKER, picks a
// version by its first numbers ("4.0"); without either it is the machine's own.
// [Installed] lists what there is:
//
//   - RabbitMQ from the system's packages (apt, dnf, apk, brew) or in /opt/rabbitmq;
//   - everything in [Folder]: Debian trees made by scripts/setup.sh of this
//     repository, so that several versions can be tested on one machine (entering
//     one needs root, user namespaces or sudo), or unpacked "generic UNIX" releases.
//
// Where none is installed but docker or podman runs, a container is used, with
// its ports published on 127.0.0.1 alone.
//
// Tests are skipped where there is no broker, and say what to install. In
// continuous integration set HOPBACK_TEST_BROKER: then they fail instead. With
// HOPBACK_TEST_BROKER=none every test that wants a broker is skipped.
//
// # Faults
//
//   - [Broker.Stop], [Broker.Kill], [Broker.Start], [Broker.Restart]: the broker
//     goes and comes back on the same ports. A start returns when every quorum
//     queue has a leader again; accepting connections is not enough for that.
//   - [Broker.MemoryAlarm]: publishers are blocked.
//   - [Broker.CloseConnections]: the broker closes every connection (code 320).
//   - [Broker.Proxy]: the network cuts, freezes, refuses or delays connections.
//   - [Broker.AddUser]: a user who may not do everything.
//
// # How these brokers differ from a default one
//
// The management plugin is on. The log level is warning. The memory limit is
// 2 GB, and the disk limit 50 MB. The Erlang schedulers do not wait busily. And
// rabbit.dead_letter_worker_consumer_prefetch is 512, not 32, as a broker that
// holds retry delays should have it: see [Options]. Everything can be set
// otherwise by Options.
package rabbittest
