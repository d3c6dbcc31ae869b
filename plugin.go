package hopback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/sparse"
	"github.com/hopback/hopback/topology"
)

// errNoWay: the binding behind the delayed exchange could not be verified, so a
// message that is published there might be confirmed and lost.
var errNoWay = errors.New("not sent: nothing is known to lead on from the delayed exchange")

// way is what is known about the binding that leads from the exchange of the
// delayed-message plugin back to the work queues.
type way struct {
	mu   sync.Mutex
	seen bool
	err  error

	warned sync.Once
	failed sparse.Limiter // checks
}

func (w *way) set(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.err = true, err
}

// verified is nil while the last look found the binding.
func (w *way) verified() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.seen:
		return errNoWay
	case w.err != nil:
		return fmt.Errorf("%w: %w", errNoWay, w.err)
	}
	return nil
}

// wayCheck is how often the binding is looked for while a consumer is subscribed.
// What waits for longer than this survives that somebody removes it.
const wayCheck = 5 * time.Second

// verifyWay makes sure that what waits in the plugin will find its way back, and
// is nil at once for a route with another mechanism. AMQP shows no bindings, but
// making one that exists is a question with a clear answer, and mends what is
// missing. It takes read on the delayed exchange and write on the exchange of the
// way back, and no configure permission, so it is done with SkipDeclare too. Without these
// permissions the management API is asked; where that cannot tell either, the error
// is a *topology.AccessError and nothing is published.
func (c *Consumer) verifyWay(ctx context.Context, conn topology.Connection) error {
	delays, _ := c.mechanism()
	p, ok := delays.(*delay.Plugin)
	if !ok {
		return nil
	}
	c.way.warned.Do(func() {
		c.log.Warn("retries wait in the delayed-message plugin", "cost", delay.PluginCost)
	})
	limited, cancel := context.WithTimeout(ctx, topologyTimeout)
	defer cancel()
	err := topology.Apply(limited, conn, topology.Topology{Bindings: []topology.Binding{p.Way()}},
		topology.WithManagement(c.client.cfg.Management))
	if err != nil {
		err = fmt.Errorf("verify the way back from the delayed-message plugin: %w", err)
	}
	if ctx.Err() == nil { // a look that was given up says nothing
		c.way.set(err)
	}
	return err
}

// watchWay looks for the binding again and again until the subscription ends.
// While it is not known to be there, nothing is published into the plugin.
func (c *Consumer) watchWay(s *subscription, conn topology.Connection) {
	if _, ok := s.delays.(*delay.Plugin); !ok {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-s.Stopped():
		case <-s.Done():
		}
		cancel()
	}()
	go func() {
		tick := time.NewTicker(wayCheck)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := c.verifyWay(ctx, conn)
			if err == nil || ctx.Err() != nil {
				continue
			}
			if others, ok := c.way.failed.May(); ok {
				c.log.Error("failed messages stay on their queue: what waits in the plugin might not come back", "error", err, "others", others)
			}
		}
	}()
}

// seeDelayedExchange asks the management API where there is one, and else the
// broker itself on a connection that may be lost.
func (c *Client) seeDelayedExchange(ctx context.Context, caps *Capabilities) error {
	if c.cfg.Management != nil && caps.ReadExchangeTypes(ctx, c.cfg.Management) == nil {
		return nil
	}
	return caps.ProbeExchangeType(ctx, func(context.Context) (*amqp.Connection, error) {
		props := amqp.NewConnectionProperties()
		props.SetClientConnectionName(c.cfg.Name + " (probe)")
		conn, err := amqp.DialConfig(c.cfg.URL, amqp.Config{
			TLSClientConfig: c.cfg.TLS.Clone(), Properties: props, Dial: amqp.DefaultDial(10 * time.Second),
		})
		if err != nil {
			return nil, errors.New("cannot connect for it") // the error may hold the URL
		}
		return conn, nil
	})
}
