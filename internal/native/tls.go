package native

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"
)

// overTLS shakes hands, with the configuration that is given or with what the
// URL's parameters say: cacertfile, certfile, keyfile, server_name_indication.
func overTLS(ctx context.Context, raw net.Conn, uri amqp.URI, given *tls.Config) (net.Conn, error) {
	cfg := given.Clone()
	if cfg == nil {
		var err error
		if cfg, err = fromURI(uri); err != nil {
			raw.Close()
			return nil, err
		}
	}
	if cfg.ServerName == "" {
		cfg.ServerName = uri.Host
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

func fromURI(uri amqp.URI) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: uri.ServerName}
	if uri.CACertFile != "" {
		pem, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("read the URL's cacertfile: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("read the URL's cacertfile: there is no certificate in it")
		}
	}
	if uri.CertFile != "" && uri.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the URL's certfile and keyfile: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}
