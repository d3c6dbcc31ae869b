package main

import (
	"fmt"
	"io"
	"regexp"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

// printRoutes says what was decided for each route.
func (t *target) printRoutes(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROUTE\tPOLICY\tMECHANISM\tWHY\tSLOTS\tPARKS IN")
	for i, r := range t.routes {
		d := t.decisions[i]
		slots := fmt.Sprintf("%d of prefix %s", len(r.DelayMechanism(t.config.Prefix).Slots()), t.config.Prefix)
		if n := r.DelayMechanism(t.config.Prefix).Slots(); len(n) == 0 {
			slots = "none"
		} else if d.Isolated {
			slots = fmt.Sprintf("%d of its own", len(r.DelayMechanism(t.config.Prefix).Slots()))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Queue, r.Policy.Name, d.Mechanism, d.Why, slots, r.Parking)
	}
	_ = w.Flush()
	for _, d := range t.decisions {
		if d.IsolatedWhy != "" {
			fmt.Fprintf(out, "%s gets slots of its own: the queue can refuse messages (%s), and a refused message blocks its slot\n", d.Queue, d.IsolatedWhy)
		}
	}
	t.printWarnings(out)
	fmt.Fprintln(out)
}

// printDifferences writes a line for each difference, but one for all the delay
// slots that are missing, of which there are dozens; all lists them too.
func printDifferences(out io.Writer, p topology.Plan, all bool) {
	slots := map[string][]string{}
	for _, d := range p.Differences {
		if !all && d.State == topology.Missing && slotPart.MatchString(d.Name) {
			slots[d.Kind] = append(slots[d.Kind], d.Name)
			continue
		}
		switch {
		case d.State == topology.Unknown:
			fmt.Fprintln(out, "?", d.Note)
		case d.State == topology.Differs:
			fmt.Fprintln(out, "~", d)
		case d.State == topology.Conflict:
			fmt.Fprintln(out, "x", d)
		case extra(d):
			fmt.Fprintf(out, "- %s %s: %s\n", d.Kind, d.Name, d.Note)
		case yours(d):
			fmt.Fprintf(out, "! %s %s: %s\n", d.Kind, d.Name, d.Note)
		default:
			fmt.Fprintln(out, "+", d.Kind, d.Name)
		}
	}
	for _, kind := range []string{"exchange", "queue", "binding"} {
		switch names := slots[kind]; {
		case len(names) == 1:
			fmt.Fprintln(out, "+", kind, names[0])
		case kind == "binding" && len(names) > 0:
			fmt.Fprintf(out, "+ %s of delay slots\n", plural(len(names), kind))
		case len(names) > 0:
			fmt.Fprintf(out, "+ %s of delay slots, %s … %s\n", plural(len(names), kind), names[0], names[len(names)-1])
		}
	}
}

// slotPart finds the names that package delay gives.
var slotPart = regexp.MustCompile(`\.(delay|then)\.[0-9]+m?s\b`)

func allFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("all", false, "list every delay slot that is missing, instead of one line for all")
}

// yours reports whether what is missing is the user's to create.
func yours(d topology.Difference) bool { return d.State == topology.Missing && d.Note != "" }

// extra reports whether it is a binding that apply would remove.
func extra(d topology.Difference) bool { return d.State == topology.Extra }

func summary(p topology.Plan) string {
	count := func(is func(topology.Difference) bool) (n int) {
		for _, d := range p.Differences {
			if is(d) {
				n++
			}
		}
		return n
	}
	mine := count(yours)
	missing := count(func(d topology.Difference) bool { return d.State == topology.Missing }) - mine
	unbind := count(extra)
	change := count(changeable)
	differ := count(func(d topology.Difference) bool { return d.State == topology.Differs }) - change
	conflicts := count(func(d topology.Difference) bool { return d.State == topology.Conflict })
	if p.Empty() {
		return "nothing to do"
	}
	s := fmt.Sprintf("%d to create", missing)
	if mine > 0 {
		s += fmt.Sprintf(", %d missing that you create", mine)
	}
	if unbind > 0 {
		s += fmt.Sprintf(", %d to unbind", unbind)
	}
	if change > 0 {
		s += fmt.Sprintf(", %d of policies to change", change)
	}
	if conflicts > 0 {
		s += fmt.Sprintf(", %d in conflict with a policy, which you settle", conflicts)
	}
	if differ > 0 {
		s += fmt.Sprintf(", %d with other values, which only deleting them can change", differ)
	}
	return s
}

// planReport is a plan for programs.
type planReport struct {
	Prefix        string       `json:"prefix"`
	Vhost         string       `json:"vhost"`
	BrokerVersion string       `json:"broker_version"`
	Routes        []planRoute  `json:"routes"`
	Empty         bool         `json:"empty"`
	Applied       *bool        `json:"applied,omitempty"`
	Unbound       []difference `json:"unbound,omitempty"` // of apply
	Differences   []difference `json:"differences"`
}

type planRoute struct {
	hopback.Decision
	Policy  string  `json:"policy"`
	Parking string  `json:"parking"`
	Slots   []int64 `json:"slots"`
	Warning string  `json:"warning,omitempty"`
}

type difference struct {
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
	State string `json:"state"`
	Key   string `json:"key,omitempty"`
	Want  *value `json:"want,omitempty"`
	Have  *value `json:"have,omitempty"`
	Note  string `json:"note,omitempty"`
}

type value struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func (t *target) report(p topology.Plan) planReport {
	r := planReport{
		Prefix: t.config.Prefix, Vhost: t.vhost, Empty: p.Empty(),
		Routes: []planRoute{}, Differences: reportDifferences(p),
	}
	r.BrokerVersion, _ = t.conn.Properties["version"].(string)
	for i, route := range t.routes {
		pr := planRoute{Decision: t.decisions[i], Policy: route.Policy.Name, Parking: route.Parking, Slots: []int64{}, Warning: warning(t.decisions[i].Mechanism)}
		for _, s := range route.DelayMechanism(t.config.Prefix).Slots() {
			pr.Slots = append(pr.Slots, s.Milliseconds())
		}
		r.Routes = append(r.Routes, pr)
	}
	return r
}

func reportDifferences(p topology.Plan) []difference {
	all := []difference{}
	for _, d := range p.Differences {
		out := difference{Kind: d.Kind, Name: d.Name, State: d.State, Key: d.Key, Note: d.Note}
		if d.Want != (topology.Value{}) {
			out.Want = &value{d.Want.Type, d.Want.Text}
		}
		if d.Have != (topology.Value{}) {
			out.Have = &value{d.Have.Type, d.Have.Text}
		}
		all = append(all, out)
	}
	return all
}

func ptr[T any](v T) *T { return &v }
