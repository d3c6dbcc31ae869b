// Package config reads the configuration file hopback.yaml.
//
// One table, in keys.go, holds every key of the file: its type, unit, default,
// choices and meaning. Reading, validation, the JSON Schema, the reference in
// docs/configuration.md and the flags of "hopback explain" all follow it, so
// that none can say something else than the others. What makes a policy or a
// route work is asked of the library itself.
//
// A file is read to its end, and everything that is wrong with it is reported
// at once: file, line, key, value, and what to write instead.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hopback/hopback"
)

// Config is a configuration file that has been read and found to be right.
type Config struct {
	// File is the name it was read from, as in error messages.
	File string

	// Prefix begins the name of every exchange and queue of ours.
	Prefix string

	Broker Broker

	// Policies by name. Each has its Name set.
	Policies map[string]hopback.Policy

	// PolicyNames in the order of the file.
	PolicyNames []string

	// Routes in the order of the file, each with its policy.
	Routes []hopback.Route

	countDeaths map[string]bool // by queue
	places      places          // where each key stood
}

// Broker says where the broker is. The URLs hold credentials: see Redact.
type Broker struct {
	// URL is an amqp:// or amqps:// URL, and empty where neither the file nor
	// the environment has one.
	URL string `yaml:"url"`

	// ManagementURL is an http:// or https:// URL, or empty.
	ManagementURL string `yaml:"management_url"`
}

// file mirrors the configuration file for the decoder, which finds fields by
// their yaml tags.
type file struct {
	Version  int                       `yaml:"version"`
	Prefix   string                    `yaml:"prefix"`
	Broker   Broker                    `yaml:"broker"`
	Policies map[string]hopback.Policy `yaml:"policies"`
	Routes   []route                   `yaml:"routes"`
}

type route struct {
	hopback.Route `yaml:",inline"`
	PolicyName    string `yaml:"policy"`
	Count         string `yaml:"count"`
}

// DefaultFile is read where no other is named.
const DefaultFile = "hopback.yaml"

// DefaultPolicy is the policy of a route that names none. A file may define it;
// one that does not gets the library's own.
const DefaultPolicy = "default"

// maxFile bounds what is read: a configuration file is a few kilobytes.
const maxFile = 4 << 20

// FromEnvironment is a configuration without a file: the broker that the environment
// names, the default policy, and no routes.
func FromEnvironment(getenv func(string) string) (*Config, error) {
	return Parse("the environment", []byte("version: 1\n"), getenv)
}

// Load reads a configuration file, "-" for standard input, and then the
// environment, which wins over the file. What is wrong is returned as Problems.
func Load(path string, stdin io.Reader, getenv func(string) string) (*Config, error) {
	name, in := path, stdin
	if path == "-" {
		name = "<stdin>"
	} else {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) && path == DefaultFile {
			return nil, fmt.Errorf("reading the configuration: %w: name a file with -c, or write one: see hopback config --help", err)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, Problems{{File: name, Line: 1, Fix: "the file is larger than 4 MiB: that is no configuration file"}}
	}
	return Parse(name, data, getenv)
}

// Parse is Load for a file that is already in memory. name is its name in
// messages. getenv may be nil, for no environment.
func Parse(name string, data []byte, getenv func(string) string) (*Config, error) {
	d := newDecoder(name)
	var f file
	d.file(data, &f)
	c := &Config{File: name, Prefix: f.Prefix, Broker: f.Broker, Policies: f.Policies, places: d.places}
	if c.Prefix == "" {
		c.Prefix = hopback.DefaultPrefix
	}
	d.check(c, &f)
	if getenv != nil {
		d.environment(&c.Broker, getenv)
	}
	d.checkBroker(&c.Broker)
	if len(d.problems) > 0 {
		return nil, d.problems.sorted()
	}
	return c, nil
}

// NeedRoutes returns a problem where the file names no route.
func (c *Config) NeedRoutes() error {
	if len(c.Routes) > 0 {
		return nil
	}
	return Problems{{File: c.File, Line: 1, Field: "routes", noValue: true, Fix: "name at least one route, such as {queue: orders}"}}
}

// NeedBroker returns a problem where neither the file nor the environment says
// where the broker is.
func (c *Config) NeedBroker() error {
	if c.Broker.URL != "" {
		return nil
	}
	return Problems{{
		File: c.File, Line: 1, Field: "broker.url", noValue: true,
		Fix: "there is none: write it into the file or set " + EnvBrokerURL + ", such as amqp://localhost:5672/",
	}}
}

// CountsDeaths reports whether the route of a queue takes the count over from
// x-death where a message has no other.
func (c *Config) CountsDeaths(queue string) bool { return c.countDeaths[queue] }

// PolicyOf finds a policy by its name. DefaultPolicy is always there.
func (c *Config) PolicyOf(name string) (hopback.Policy, error) {
	if p, ok := c.Policies[name]; ok {
		return p, nil
	}
	if name == DefaultPolicy {
		return hopback.Policy{Name: DefaultPolicy}, nil
	}
	return hopback.Policy{}, fmt.Errorf("%s has no policy %q: it has %s", c.File, name, strings.Join(c.PolicyNames, ", "))
}
