package config

import (
	"net/url"
	"strings"
)

// The environment, which wins over the file.
const (
	EnvBrokerURL     = "HOPBACK_BROKER_URL"
	EnvManagementURL = "HOPBACK_MANAGEMENT_URL"

	// EnvUsername and EnvPassword replace the credentials of both URLs, so that
	// the file needs none. They are taken as they are, without percent-encoding.
	EnvUsername = "HOPBACK_BROKER_USERNAME"
	EnvPassword = "HOPBACK_BROKER_PASSWORD"
)

// environment overlays the broker's address with that of the environment.
func (d *decoder) environment(b *Broker, getenv func(string) string) {
	overlay := func(env, path string, to *string) {
		if v := getenv(env); v != "" {
			*to = v
			d.places[path] = place{text: env} // errors name the variable
		}
	}
	overlay(EnvBrokerURL, "broker.url", &b.URL)
	overlay(EnvManagementURL, "broker.management_url", &b.ManagementURL)
	user, password := getenv(EnvUsername), getenv(EnvPassword)
	if user == "" && password == "" {
		return
	}
	for _, to := range []*string{&b.URL, &b.ManagementURL} {
		u, err := url.Parse(*to)
		if *to == "" || err != nil || u.Host == "" {
			continue // empty, or reported by checkBroker
		}
		name, secret := u.User.Username(), password
		if user != "" {
			name = user
		}
		if password == "" {
			secret, _ = u.User.Password()
		}
		if name == "" {
			name = "guest" // as RabbitMQ's clients have it
		}
		u.User = url.UserPassword(name, secret)
		*to = u.String()
	}
}

// checkBroker checks both URLs. The text of an error of url.Parse is never
// shown: it quotes the URL, password and all.
func (d *decoder) checkBroker(b *Broker) {
	d.checkURL("broker.url", b.URL, []string{"amqp", "amqps"}, "amqp://user:password@host:5672/vhost")
	d.checkURL("broker.management_url", b.ManagementURL, []string{"http", "https"}, "http://user:password@host:15672")
}

func (d *decoder) checkURL(path, value string, schemes []string, form string) {
	if value == "" {
		return
	}
	u, err := url.Parse(value)
	fix := ""
	switch {
	case err != nil || strings.Contains(u.EscapedPath()+u.RawQuery+u.Fragment, "@"):
		fix = "write it as " + form + " and percent-encode special characters of user, password and vhost, " +
			"or give the credentials in " + EnvUsername + " and " + EnvPassword
	case u.Scheme != schemes[0] && u.Scheme != schemes[1]:
		fix = "write it as " + form + ": it must begin with " + schemes[0] + ":// or " + schemes[1] + "://"
	case u.Hostname() == "":
		fix = "name the host, as in " + form
	case u.Fragment != "" || strings.ContainsAny(value, " \t\n#"):
		fix = "percent-encode # as %23 and a space as %20"
	case schemes[0] == "amqp" && strings.Contains(strings.TrimPrefix(u.EscapedPath(), "/"), "/"):
		fix = "percent-encode a slash in the name of the vhost as %2F"
	}
	if fix == "" {
		return
	}
	at := d.places[path]
	p := Problem{File: d.name, Line: at.line, Column: at.column, Field: path, Value: redactURL(value), Fix: fix}
	if at.line == 0 && at.text != "" {
		p.File = at.text
	}
	d.problems = append(d.problems, p)
}
