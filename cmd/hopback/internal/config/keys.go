package config

import "github.com/hopback/hopback"

// Kind is the type of a key's value.
type Kind string

// The kinds of values.
const (
	Text     Kind = "text"
	Duration Kind = "duration"
	Whole    Kind = "whole number"
	Number   Kind = "number"
	Switch   Kind = "true or false"
	List     Kind = "list"    // of Elem
	Section  Kind = "section" // with Keys
	Map      Kind = "map"     // from a name of the user's to an Elem
)

// Key is one key of the configuration file. The table of them is the one
// definition that all else follows.
type Key struct {
	Name string
	Kind Kind
	Doc  string // in Markdown; one sentence or a few

	Default string // as it would be written in the file
	Example string // the same
	Unit    string // where the value is a bare number

	Required bool
	Secret   bool   // may hold a password: never shown as it is
	Env      string // the environment variable that wins over the file

	Choices []Choice // what a text may be
	Refused []Choice // texts with a message of their own, which is Doc
	Words   []Word   // what a duration or number may be besides

	Min, Max *float64 // of a number

	// Also are names that people bring from other tools, for "did you mean".
	Also []string

	Keys []Key // of a Section
	Elem *Key  // of a List or Map
}

// Choice is one value that a text may have.
type Choice struct{ Value, Doc string }

// Word is a value written as a word or as 0 and stored as a number of the
// library's own, which has another zero value.
type Word struct {
	Text  string
	Value int64
}

func limit(f float64) *float64 { return &f }

// root is the whole file.
var root = Key{Kind: Section, Doc: "The configuration file of Hopback.", Keys: []Key{
	{
		Name: "version", Kind: Whole, Required: true, Min: limit(1), Max: limit(1), Example: "1",
		Doc: "The version of this format. There is one so far: 1.",
	},
	{
		Name: "prefix", Kind: Text, Default: hopback.DefaultPrefix,
		Doc: "Begins the name of every exchange and queue of ours: `hop.return`, `hop.delay.3s`. Services that share a prefix share their delay slots.",
	},
	{Name: "broker", Kind: Section, Keys: brokerKeys, Doc: "Where the broker is. Credentials are better kept out of the file: see [the environment](#environment)."},
	{
		Name: "policies", Kind: Map, Also: []string{"policy"},
		Doc:  "Policies by name. A policy says when a failed message comes back and when it stops doing so. The name is yours; messages carry it as `x-retry-policy`.",
		Elem: &Key{Name: "name", Kind: Section, Keys: policyKeys, Doc: "A policy."},
	},
	{
		Name: "routes", Kind: List, Also: []string{"route", "queues"},
		Doc:  "The work queues, each with its policy, mechanism and parking queue.",
		Elem: &Key{Kind: Section, Keys: routeKeys, Doc: "A route."},
	},
}}

var brokerKeys = []Key{
	{
		Name: "url", Kind: Text, Secret: true, Env: EnvBrokerURL, Example: "amqp://localhost:5672/",
		Doc:  "The broker's AMQP URL, `amqp://` or `amqps://`. Characters that a URL reserves must be percent-encoded: the vhost `a/b` is `amqp://localhost/a%2Fb`.",
		Also: []string{"uri", "amqp_url", "address", "host"},
	},
	{
		Name: "management_url", Kind: Text, Secret: true, Env: EnvManagementURL, Example: "http://localhost:15672",
		Doc:  "The base URL of the management API, `http://` or `https://`. With it, `plan` and `verify` see bindings and the arguments of what exists, and find the work queues that can refuse messages.",
		Also: []string{"management", "management_uri", "api_url", "http_url"},
	},
}

var policyKeys = []Key{
	{
		Name: "backoff", Kind: Text, Default: "exponential", Also: []string{"strategy", "type", "kind"},
		Doc: "How the delay grows from retry to retry, before jitter and never above `max`.",
		Choices: []Choice{
			{"exponential", "`base` × `factor`^(n-1): 1s, 2s, 4s, 8s, …"},
			{"linear", "`base` × n: 1s, 2s, 3s, 4s, …"},
			{"constant", "`base`, always"},
			{"fibonacci", "`base` × 1, 1, 2, 3, 5, 8, …"},
			{"list", "`delays`, one after the other; the last repeats"},
		},
	},
	{
		Name: "base", Kind: Duration, Default: "1s", Also: []string{"initial", "initial_delay", "initial_interval", "delay", "interval"},
		Doc: "The delay of the first retry, before jitter. Not for `list`.",
	},
	{
		Name: "factor", Kind: Number, Default: "2", Min: limit(1), Also: []string{"multiplier", "exponent", "rate"},
		Doc: "What each delay is multiplied by to give the next. Only for `exponential`.",
	},
	{
		Name: "max", Kind: Duration, Default: "60s", Also: []string{"max_delay", "max_interval", "cap", "maximum"},
		Doc: "The longest delay, jitter included; at most 25h, the longest slot. A `list` is capped by its own longest delay unless this is set.",
	},
	{
		Name: "delays", Kind: List, Example: "[10s, 1m, 10m]", Also: []string{"list", "intervals"},
		Elem: &Key{Kind: Duration, Doc: "A delay."},
		Doc:  "The delays of backoff `list`, the first for the first retry. The last repeats.",
	},
	{
		Name: "jitter", Kind: Text, Default: "full",
		Doc: "How a delay d is spread at random, so that messages that failed together do not come back together. The result is never above `max` nor below `min_delay`.",
		Choices: []Choice{
			{"full", "from 0 to d"},
			{"equal", "from d/2 to d"},
			{"proportional", "from d × (1 - `jitter_ratio`) to d × (1 + `jitter_ratio`)"},
			{"decorrelated", "from `base` to three times the delay before; only with `exponential`, and without `factor`"},
			{"none", "d itself"},
		},
	},
	{
		Name: "jitter_ratio", Kind: Number, Default: "0.2", Unit: "fraction", Min: limit(0), Max: limit(1),
		Doc:  "The width of jitter `proportional`: 0.2 is ± 20 %. Above 0, at most 1.",
		Also: []string{"ratio", "jitter_factor"},
	},
	{
		Name: "min_delay", Kind: Duration, Default: "100ms", Also: []string{"min", "minimum", "floor"},
		Doc: "The shortest delay, jitter included. `1ms` is as good as none, but the wheel's shortest slot is 100ms.",
	},
	{
		Name: "max_retries", Kind: Whole, Default: "5", Unit: "retries", Min: limit(0), Max: limit(1_000_000),
		Words: []Word{{"0", hopback.NoRetries}},
		Doc:   "How often a message comes back after its first failure: the handler runs at most once more than this. 0 parks it at the first failure.",
		Also:  []string{"retries", "max_attempts", "attempts", "limit", "retry_limit"},
	},
	{
		Name: "max_age", Kind: Duration, Default: "24h", Words: []Word{{"unlimited", int64(hopback.Unlimited)}},
		Doc:  "The longest time between the first failure and the next retry; a message whose next retry would come later is parked. `unlimited` switches this limit off.",
		Also: []string{"age", "ttl", "timeout", "max_elapsed_time"},
	},
	{
		Name: "max_retry_after", Kind: Duration, Default: "1h",
		Doc: "The longest delay that a handler may choose for itself (`RetryAfter`, `Snooze`); at most 25h. The default is `max` where that is longer than 1h.",
	},
	{
		Name: "permanent_types", Kind: List, Example: "[ValidationError]", Also: []string{"permanent", "permanent_errors", "no_retry"},
		Elem: &Key{Kind: Text, Doc: "The name of an error type, with or without its package."},
		Doc:  "Error types that no retry can mend: their messages are parked at once. With or without the package: `ValidationError`, `orders.ValidationError`.",
	},
}

var routeKeys = []Key{
	{
		Name: "queue", Kind: Text, Required: true, Example: "orders", Also: []string{"name", "work_queue"},
		Doc: "The work queue. It is yours: Hopback checks that it exists and changes nothing about it.",
	},
	{
		Name: "policy", Kind: Text, Default: DefaultPolicy, Also: []string{"retry_policy"},
		Doc: "The name of one of the policies. Without it the route uses the policy named `default`, which need not be in the file: then every key has its default.",
	},
	{
		Name: "mechanism", Kind: Text, Default: hopback.Auto, Also: []string{"delay", "type"},
		Doc: "How the broker holds a delay.",
		Choices: []Choice{
			{hopback.Auto, "the best that the broker offers; `hopback plan` says which and why"},
			{hopback.Native, "the broker holds the message on its own queue, to the millisecond: RabbitMQ 4.3, quorum queues"},
			{hopback.Wheel, "any delay from 100ms to 25h, to two significant digits, on every broker"},
			{hopback.Ladder, "the delays of `ladder` and no others, on every broker"},
			{hopback.Plugin, "any delay, in the plugin `rabbitmq_delayed_message_exchange`, up to RabbitMQ 4.2; [what it costs](plugin.md)"},
			{hopback.NativeLinear, "the broker's own retry, set as a policy by `hopback apply`, for consumers that are not Hopback's: RabbitMQ 4.3.1, quorum queues, backoff `linear`, jitter `none`; see [native-linear](native-linear.md)"},
		},
	},
	{
		Name: "ladder", Kind: List, Example: "[1s, 2s, 4s, 8s]", Also: []string{"rungs", "slots"},
		Elem: &Key{Kind: Duration, Doc: "A delay."},
		Doc:  "The delays of mechanism `ladder`, in rising order. A retry waits in the shortest that is not shorter than its delay, or in the longest.",
	},
	{
		Name: "parking", Kind: Text, Default: "<queue>.parked", Also: []string{"parking_queue", "dlq", "dead_letter_queue", "error_queue"},
		Doc: "Where messages rest after their last retry. A queue named here that exists already is used as it is. After a change, what is parked goes to the queue of before too, until `hopback apply` (with a management URL) unbinds it: see [changing the parking queue](topology.md#changing-the-parking-queue).",
	},
	{
		Name: "isolate", Kind: Switch, Default: "false", Also: []string{"isolated"},
		Doc: "Gives the route delay slots, or a delayed exchange, of its own. A work queue that can refuse messages (a max-length with overflow reject-publish) needs them: a refused message blocks its slot for three minutes at a time. `hopback plan` finds such queues itself where it has a management URL.",
	},
	{
		Name: "precision", Kind: Text, Default: "auto",
		Doc: "How many significant digits of a delay the wheel keeps. Each digit is one slot to wait in.",
		Choices: []Choice{
			{"auto", "two, but one of a jittered delay while many messages are being retried"},
			{"one", "3.4s waits in `3s` or in `4s`, at random with the odds that keep the mean"},
			{"two", "3.4s waits in `3s`, then in `400ms`"},
		},
	},
	{
		Name: "count", Kind: Text, Default: "own",
		Doc: "Where `hopback serve` begins to count for a message that it sees for the first time.",
		Choices: []Choice{
			{"own", "at 0, or at the `x-retry-count` that the message has already"},
			{CountDeaths, "where it has none, at what RabbitMQ counted in `x-death` for this queue: for queues whose retries went through dead-lettering before"},
		},
	},
	{
		Name: "declare", Kind: Section, Keys: declareKeys,
		Doc: "Asks Hopback to create the work queue where it is missing. One that exists is left as it is.",
	},
}

// CountDeaths is the value of count that takes over what RabbitMQ counted.
const CountDeaths = "x-death"

var declareKeys = []Key{
	{
		Name: "type", Kind: Text, Default: "quorum", Also: []string{"queue_type"},
		Doc:     "The type of the queue.",
		Choices: []Choice{{"quorum", "replicated; the type to use"}, {"classic", "on one node"}},
	},
	{
		Name: "exchange", Kind: Text, Example: "shop",
		Doc: "An exchange to declare too and to bind to the queue. Without it the queue has no binding but that of the default exchange.",
	},
	{
		Name: "exchange_type", Kind: Text, Default: "topic",
		Doc:     "The type of that exchange.",
		Choices: []Choice{{"topic", ""}, {"direct", ""}, {"fanout", ""}, {"headers", ""}},
	},
	{
		Name: "routing_key", Kind: Text, Example: "order.create", Also: []string{"binding_key", "key"},
		Doc: "The key of that binding.",
	},
}

// Names lists the values of the choices.
func names(cs []Choice) []string {
	var ns []string
	for _, c := range cs {
		ns = append(ns, c.Value)
	}
	return ns
}

// find returns the key of a section by name, or nil.
func (k *Key) find(name string) *Key {
	for i := range k.Keys {
		if k.Keys[i].Name == name {
			return &k.Keys[i]
		}
	}
	return nil
}

// PolicyKeys are the keys of a policy, for commands that take them as flags.
func PolicyKeys() []Key { return policyKeys }

// RouteKeys are the keys of a route.
func RouteKeys() []Key { return routeKeys }
