package rabbittest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// StatusError is an answer of the management API that is not a success.
type StatusError struct {
	Method, Path string
	Status       int    // for example 404
	Body         string // what the broker says about it
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: status %d: %s", e.Method, e.Path, e.Status, e.Body)
}

// Get reads from the management API, for example "/api/queues/%2F/orders", and
// decodes the JSON answer into a pointer (nil: only whether it succeeds). Names
// in the path must be escaped with [url.PathEscape] by the caller. Figures such
// as message counts are up to five seconds old: see [Broker.Depth].
func (b *Broker) Get(ctx context.Context, path string, into any) error {
	return b.call(ctx, http.MethodGet, path, nil, into)
}

// Put writes to the management API; body is encoded as JSON, nil is no body.
func (b *Broker) Put(ctx context.Context, path string, body any) error {
	return b.call(ctx, http.MethodPut, path, body, nil)
}

// Post sends to the management API and decodes the answer into a pointer unless
// that is nil.
func (b *Broker) Post(ctx context.Context, path string, body, into any) error {
	return b.call(ctx, http.MethodPost, path, body, into)
}

// Delete deletes through the management API.
func (b *Broker) Delete(ctx context.Context, path string) error {
	return b.call(ctx, http.MethodDelete, path, nil, nil)
}

func (b *Broker) call(ctx context.Context, method, path string, body, into any) error {
	if b.o.NoManagement {
		return fmt.Errorf("%s %s: the broker runs without the management plugin (Options.NoManagement)", method, path)
	}
	path = "/" + strings.TrimPrefix(path, "/")
	if !strings.HasPrefix(path, "/api/") {
		path = "/api" + path
	}
	var send io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s %s: encoding the body: %w", method, path, err)
		}
		send = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, b.ManagementURL()+path, send)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.http.Do(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: reading the answer: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return &StatusError{Method: method, Path: path, Status: resp.StatusCode, Body: strings.TrimSpace(string(text))}
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s %s: decoding the answer: %w", method, path, err)
	}
	return nil
}

// VhostURL is the AMQP URL of a virtual host, as the user guest.
func (b *Broker) VhostURL(vhost string) string {
	return b.URL() + url.PathEscape(vhost)
}

// vhostOf takes the virtual host out of an AMQP URL, or takes the argument as a name.
func vhostOf(urlOrName string) (string, error) {
	if !strings.Contains(urlOrName, "://") {
		return urlOrName, nil
	}
	u, err := amqp.ParseURI(urlOrName)
	if err != nil {
		// The error would quote the URL with its password.
		return "", errors.New("the AMQP URL cannot be read")
	}
	return u.Vhost, nil
}

// AddVhost makes a virtual host in which the user guest may do everything.
func (b *Broker) AddVhost(ctx context.Context, name string) error {
	if b.o.NoManagement {
		if _, err := b.Ctl(ctx, "add_vhost", name); err != nil {
			return fmt.Errorf("adding virtual host %q: %w", name, err)
		}
		if _, err := b.Ctl(ctx, "set_permissions", "-p", name, "guest", ".*", ".*", ".*"); err != nil {
			return fmt.Errorf("adding virtual host %q: %w", name, err)
		}
		return nil
	}
	// Whoever creates a virtual host through the API gets full permissions there.
	if err := b.Put(ctx, "/api/vhosts/"+url.PathEscape(name), nil); err != nil {
		return fmt.Errorf("adding virtual host %q: %w", name, err)
	}
	return nil
}

// DeleteVhost removes a virtual host with everything in it; its connections are
// closed by the broker. It is no error when there is none of that name.
func (b *Broker) DeleteVhost(ctx context.Context, name string) error {
	if b.o.NoManagement {
		if _, err := b.Ctl(ctx, "delete_vhost", name); err != nil && !strings.Contains(err.Error(), "does not exist") {
			return fmt.Errorf("deleting virtual host %q: %w", name, err)
		}
		return nil
	}
	err := b.Delete(ctx, "/api/vhosts/"+url.PathEscape(name))
	var st *StatusError
	if err != nil && !(errors.As(err, &st) && st.Status == http.StatusNotFound) {
		return fmt.Errorf("deleting virtual host %q: %w", name, err)
	}
	return nil
}

// AddUser makes a user (or changes the password of one) and sets its permissions
// in one virtual host: configure, write and read are the broker's regular
// expressions, "" permits nothing and ".*" everything.
func (b *Broker) AddUser(ctx context.Context, name, password, vhost, configure, write, read string) error {
	if b.o.NoManagement {
		_, err := b.Ctl(ctx, "add_user", name, password)
		if err != nil && strings.Contains(err.Error(), "already exists") {
			_, err = b.Ctl(ctx, "change_password", name, password)
		}
		if err == nil {
			_, err = b.Ctl(ctx, "set_permissions", "-p", vhost, name, configure, write, read)
		}
		if err != nil {
			return fmt.Errorf("adding user %q: %w", name, errors.New(strings.ReplaceAll(err.Error(), password, "***")))
		}
		return nil
	}
	if err := b.Put(ctx, "/api/users/"+url.PathEscape(name), map[string]any{"password": password, "tags": ""}); err != nil {
		return fmt.Errorf("adding user %q: %w", name, err)
	}
	err := b.Put(ctx, "/api/permissions/"+url.PathEscape(vhost)+"/"+url.PathEscape(name),
		map[string]any{"configure": configure, "write": write, "read": read})
	if err != nil {
		return fmt.Errorf("adding user %q: permissions in %q: %w", name, vhost, err)
	}
	return nil
}

// Depth is how many messages of a queue are ready for delivery now, from a
// passive declaration: exact, where the management API's figures lag. Messages
// that consumers hold unacknowledged do not count, and neither do those that a
// quorum queue's dead-letter worker holds. The queue is looked for in the
// virtual host of the AMQP URL, or in the one of that name.
func (b *Broker) Depth(ctx context.Context, amqpURLOrVhost, queue string) (int, error) {
	vhost, err := vhostOf(amqpURLOrVhost)
	if err != nil {
		return 0, fmt.Errorf("counting messages in %q: %w", queue, err)
	}
	conn, err := b.dial(ctx, vhost)
	if err != nil {
		return 0, fmt.Errorf("counting messages in %q: %w", queue, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ch, err := conn.Channel()
	if err != nil {
		return 0, fmt.Errorf("counting messages in %q: %w", queue, err)
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return 0, fmt.Errorf("counting messages in %q: %w", queue, errors.Join(err, ctx.Err()))
	}
	return q.Messages, nil
}
