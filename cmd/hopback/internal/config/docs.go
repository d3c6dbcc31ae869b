package config

import (
	"fmt"
	"strings"
)

// Docs is the reference of the configuration file in Markdown, as it stands in
// docs/configuration.md.
func Docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	for _, s := range []struct{ title, path, intro string }{
		{"The file", "", ""},
		{"`broker`", "broker", ""},
		{"A policy: `policies.<name>`", "policies.<name>", "Retry n waits for its backoff, capped at `max`, then spread by its jitter."},
		{"A route: `routes[n]`", "routes[n]", ""},
		{"`routes[n].declare`", "routes[n].declare", ""},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n", s.title)
		if s.intro != "" {
			b.WriteString(s.intro + "\n\n")
		}
		b.WriteString(table(keysAt(s.path)))
	}
	b.WriteString(docsTail)
	return b.String()
}

func keysAt(path string) []Key {
	switch path {
	case "broker":
		return brokerKeys
	case "policies.<name>":
		return policyKeys
	case "routes[n]":
		return routeKeys
	case "routes[n].declare":
		return declareKeys
	}
	return root.Keys
}

func table(keys []Key) string {
	var b strings.Builder
	b.WriteString("| key | type | default | meaning |\n|---|---|---|---|\n")
	for _, k := range keys {
		def := "–"
		switch {
		case k.Required:
			def = "required"
		case k.Default != "":
			def = "`" + k.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.typeName(), def, k.meaning())
	}
	return b.String()
}

func (k *Key) typeName() string {
	switch {
	case len(k.Choices) > 0:
		return "one of " + strings.Join(quoted(k.Choices), ", ")
	case k.Kind == List && k.Elem.Kind == Section:
		return "list of sections"
	case k.Kind == List:
		return "list of " + string(k.Elem.Kind) + "s"
	case k.Kind == Map:
		return "section of named sections"
	case k.Kind == Duration && len(k.Words) > 0:
		return "duration or `" + k.Words[0].Text + "`"
	case k.Min != nil && k.Max != nil && *k.Min == *k.Max:
		return "`" + trim(*k.Min) + "`"
	case k.Kind == Whole && k.Max != nil:
		return fmt.Sprintf("whole number, %s to %s", trim(*k.Min), trim(*k.Max))
	}
	return string(k.Kind)
}

func (k *Key) meaning() string {
	var b strings.Builder
	b.WriteString(k.Doc)
	for i, c := range k.Choices {
		if c.Doc == "" {
			continue
		}
		if i == 0 {
			b.WriteString("<br>")
		}
		fmt.Fprintf(&b, "• `%s`: %s<br>", c.Value, c.Doc)
	}
	if len(k.Refused) > 0 {
		fmt.Fprintf(&b, "%s are refused: %s.", strings.Join(quoted(k.Refused), ", "), k.Refused[0].Doc)
	}
	if k.Example != "" && !k.Required {
		fmt.Fprintf(&b, " Example: `%s`.", k.Example)
	}
	if k.Env != "" {
		fmt.Fprintf(&b, " `%s` wins over it.", k.Env)
	}
	return strings.TrimSuffix(b.String(), "<br>")
}

func quoted(cs []Choice) []string {
	var qs []string
	for _, c := range cs {
		qs = append(qs, "`"+c.Value+"`")
	}
	return qs
}

const docsHead = `<!-- Written by "go generate" in cmd/hopback from the table that the program reads files with
     (cmd/hopback/internal/config/keys.go). Change it there. -->
# The configuration file

The command ` + "`hopback`" + ` reads ` + "`hopback.yaml`" + `, or the file that ` + "`-c`" + ` names (` + "`-c -`" + ` is standard input). It is YAML:

` + "```yaml" + `
version: 1
broker:
  url: amqp://localhost:5672/
policies:
  standard: {backoff: exponential, base: 1s, max: 60s, jitter: full, max_retries: 5}
routes:
  - {queue: orders, policy: standard}
` + "```" + `

[hopback.yaml](../hopback.yaml) is an example with every key. Three commands look at a file without a broker:

` + "```sh" + `
hopback config validate -c hopback.yaml          # all that is wrong, at once: file, line, key, value and the fix
hopback config schema > hopback.schema.json      # JSON Schema 2020-12, for editors and CI
hopback explain -c hopback.yaml                  # what the policies do
` + "```" + `

An editor with a YAML language server checks the file while you type, if its first line is

` + "```yaml" + `
# yaml-language-server: $schema=hopback.schema.json
` + "```" + `

What holds everywhere:

- A **duration** is a number with a unit, ` + "`500ms`, `1s`, `1m30s`, `2h`" + `, in whole milliseconds. A bare number is refused: its unit would be a guess.
- A key that is not in the tables below is an error, and so is one that is there twice. A key with nothing behind it is an error too: remove it to
  get its default.
- A key that would have no effect, such as ` + "`factor`" + ` for backoff ` + "`linear`" + `, is an error: a setting that is ignored is a surprise later.
- Anchors, aliases and ` + "`<<`" + ` work, so that policies can share what they have in common. One file is one document.
`

const docsTail = `
## Environment

The environment wins over the file, so that one file serves every stage and holds no secrets.

| variable | replaces |
|---|---|
| ` + "`" + EnvBrokerURL + "`" + ` | ` + "`broker.url`" + ` |
| ` + "`" + EnvManagementURL + "`" + ` | ` + "`broker.management_url`" + ` |
| ` + "`" + EnvUsername + "`" + ` | the user name in both URLs |
| ` + "`" + EnvPassword + "`" + ` | the password in both URLs |

User name and password are taken as they are; only inside a URL must special characters be percent-encoded. An empty variable counts as none.
Passwords never reach a message, a log or an output of the command.
`
