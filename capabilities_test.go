package hopback

import (
	"errors"
	"strings"
	"testing"
)

func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		have, want string
		yes        bool
	}{
		{"4.3.0", "4.3.0", true},
		{"4.3.6", "4.3.0", true},
		{"4.10.0", "4.3.0", true},
		{"3.10.8", "3.9.13", true},
		{"3.9.13", "3.10.0", false},
		{"4.2.9", "4.3.0", false},
		{"4.3", "4.3.0", true},
		{"5", "4.3.1", true},
		{"4.3.0-rc.1", "4.3.0", false},
		{"4.3.1-rc.1", "4.3.0", true},
		{"3.10.8+dfsg1", "3.10.8", true},
		{"4.3.1-alpha.5+git", "4.3.1", false},
		{"", "0.0.1", false},
		{"unknown", "0.0.1", false},
		{"4.x", "4.0.0", false},
	} {
		if got := (Capabilities{Version: c.have}).AtLeast(c.want); got != c.yes {
			t.Errorf("%q at least %q: %v", c.have, c.want, got)
		}
	}
}

func TestChoose(t *testing.T) {
	rabbit := func(v string, o ...Offer) Capabilities {
		return Capabilities{Product: "RabbitMQ", Version: v, DelayedExchange: append(o, Unseen)[0]}
	}
	lavin := Capabilities{Product: "LavinMQ", Version: "2.4.1", DelayedExchange: Offered}
	other := Capabilities{Product: "qpid", Version: "9.2.0"}
	nameless := Capabilities{}
	for _, c := range []struct {
		name   string
		caps   Capabilities
		queue  string
		wanted string
		want   string // mechanism, or "" for a refusal
		words  string // in why, or in the refusal's fix
	}{
		{"auto, old", rabbit("3.10.8", Offered), "quorum", Auto, Wheel, "native needs RabbitMQ 4.3; this is 3.10.8"},
		{"auto, 4.2", rabbit("4.2.9"), "quorum", Auto, Wheel, "this is 4.2.9"},
		{"auto, 4.3", rabbit("4.3.0"), "quorum", Auto, Native, "quorum queue"},
		{"auto, release candidate", rabbit("4.3.0-rc.1"), "quorum", Auto, Wheel, "4.3.0-rc.1"},
		{"auto, later", rabbit("5.0.0"), "quorum", Auto, Native, "5.0.0"},
		{"auto, a vendor's", Capabilities{Product: "VMware Tanzu RabbitMQ", Version: "4.3.2"}, "quorum", Auto, Native, "4.3.2"},
		{"auto, classic", rabbit("4.3.6"), "classic", Auto, Wheel, "this one is classic"},
		{"auto, type unseen", rabbit("4.3.6"), "", Auto, Wheel, "could not be seen"},
		{"auto never takes the plugin", rabbit("4.1.0", Offered), "classic", Auto, Wheel, "without a plugin"},
		{"auto, too old", rabbit("3.9.13"), "quorum", Auto, "", "RabbitMQ 3.10 or later"},
		{"auto, LavinMQ", lavin, "classic", Auto, "", "LavinMQ 2.4.1"},
		{"auto, another broker", other, "classic", Auto, Wheel, "untested on qpid 9.2.0"},
		{"auto, nameless", nameless, "", Auto, Wheel, "untested on an unnamed broker"},

		{"wheel", rabbit("4.3.6"), "quorum", Wheel, Wheel, "named"},
		{"ladder", rabbit("3.10.8"), "classic", Ladder, Ladder, "named"},
		{"wheel, too old", rabbit("3.8.2"), "quorum", Wheel, "", "3.10"},
		{"wheel, LavinMQ", lavin, "classic", Wheel, "", "untested"},
		{"wheel, another broker", other, "", Wheel, Wheel, "untested on qpid"},

		{"plugin", rabbit("3.10.8", Offered), "classic", Plugin, Plugin, "offered"},
		{"plugin, unseen", rabbit("4.0.5"), "quorum", Plugin, Plugin, "could not be seen"},
		{"plugin, missing", rabbit("4.0.5", NotOffered), "quorum", Plugin, "", "enable the plugin"},
		{"plugin, 4.3", rabbit("4.3.6", NotOffered), "quorum", Plugin, "", "does not run on RabbitMQ 4.3.6"},
		{"plugin, 4.3 as it claims", rabbit("4.3.6", Offered), "quorum", Plugin, "", "does not run"},
		{"plugin, LavinMQ", lavin, "classic", Plugin, "", "untested"},
		{"plugin, another broker without", Capabilities{Product: "qpid", DelayedExchange: NotOffered}, "", Plugin, "", "qpid"},

		{"native", rabbit("4.3.0"), "quorum", Native, Native, "offered"},
		{"native, unseen", rabbit("4.3.0"), "", Native, Native, "could not be seen"},
		{"native, classic", rabbit("4.3.0"), "classic", Native, "", "quorum queue"},
		{"native, 4.2", rabbit("4.2.0"), "quorum", Native, "", "RabbitMQ 4.3.0 or later"},
		{"native, another broker", other, "", Native, "", "qpid"},
		{"native, no version", Capabilities{Product: "RabbitMQ"}, "quorum", Native, "", "4.3.0"},

		{"native-linear", rabbit("4.3.1"), "quorum", NativeLinear, NativeLinear, "offered"},
		{"native-linear, 4.3.0", rabbit("4.3.0"), "quorum", NativeLinear, "", "RabbitMQ 4.3.1 or later"},
		{"native-linear, stream", rabbit("4.3.1"), "stream", NativeLinear, "", "stream"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, why, err := choose(c.caps, c.queue, c.wanted)
			if got != c.want {
				t.Fatalf("got %q (%s), %v; want %q", got, why, err, c.want)
			}
			if c.want != "" {
				if err != nil || !strings.Contains(why, c.words) {
					t.Errorf("%v; why: %q, want it to say %q", err, why, c.words)
				}
				return
			}
			var refused *ConfigError
			if !errors.As(err, &refused) || refused.Field != "mechanism" || refused.Value != c.wanted {
				t.Fatalf("got %v, want a *ConfigError about the mechanism", err)
			}
			if !strings.Contains(refused.Fix, c.words) {
				t.Errorf("%q does not say %q", refused.Fix, c.words)
			}
		})
	}
}
