package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/link"
)

// undecodable reports whether the connection was ended by this side, since
// amqp091-go could not read a frame. RabbitMQ 3.10 hands on header values with the
// tag L, which py-amqp writes for 64-bit integers and amqp091-go does not know;
// and a header that outgrew the frame by dead-lettering cannot be read on any
// version. Lost sockets have the same code, and other words.
func undecodable(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.FrameError {
		return false
	}
	for _, known := range []*amqp.Error{amqp.ErrSyntax, amqp.ErrFrame, amqp.ErrFrameTooLarge} {
		if strings.Contains(e.Reason, known.Reason) {
			return true
		}
	}
	return false
}

// beCareful takes one message at a time from now on. The loss of a connection
// counts against all that were handed out, and the broker moves to the quarantine
// what was counted too often: so only the one that cannot be read is.
func (r *Router) beCareful(err error) {
	if !r.careful {
		r.log.Error("a message cannot be read by this client and ends the connection; taking one at a time, until the broker has moved it to the quarantine",
			"queue", r.names.failed(), "quarantine", r.names.quarantine(), "after", quarantineAfter, "error", err)
	}
	r.careful = true
	r.observeMore(func(o Observer) { o.Undecodable(Undecodable{Queue: r.names.failed(), Err: err}) })
}

// watch looks after what nobody consumes, and after routes in trouble, until ctx
// ends.
func (r *Router) watch(ctx context.Context) {
	depths, routes := time.NewTicker(depthsEvery), time.NewTicker(troubleEvery)
	defer depths.Stop()
	defer routes.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-depths.C:
			if session, err := r.consume.Session(ctx); err == nil {
				r.look(ctx, session)
			}
		case <-routes.C:
			if r.Trouble() == nil || r.cfg.Client.SkipDeclare {
				continue
			}
			limited, cancel := context.WithTimeout(ctx, topologyTimeout)
			if session, err := r.consume.Session(limited); err == nil {
				r.prepareRoutes(limited, session) //nolint:errcheck // it is looked at again
			}
			cancel()
		}
	}
}

const (
	depthsEvery  = 5 * time.Second
	troubleEvery = 30 * time.Second
)

// look counts what lies in the router's own queues, and says so when there is more
// for a person to look at than before.
func (r *Router) look(ctx context.Context, session *link.Session) {
	found := map[string]int{}
	for _, q := range []string{r.names.failed(), r.names.held(), r.names.quarantine(), r.names.parking()} {
		n, err := session.Depth(ctx, q)
		if err != nil {
			return // the next look may see more
		}
		found[q] = n
	}
	r.stateMu.Lock()
	before := r.depths
	r.depths = found
	r.stateMu.Unlock()
	for q, remedy := range map[string]string{
		r.names.quarantine(): "this client cannot read them, or was killed again and again while it had them: look at them with another client or over the management API, mend the headers, and publish them to " + r.names.failed(),
		r.names.parking():    "they name no queue that is served: x-retry-reason says why",
	} {
		if found[q] > before[q] {
			r.log.Error(fmt.Sprintf("%d messages wait for a person", found[q]), "queue", q, "more", found[q]-before[q], "remedy", remedy)
		}
	}
}
