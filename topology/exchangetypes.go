package topology

import (
	"context"
	"slices"
)

// ExchangeTypes lists the exchange types that the broker offers, those of its
// plugins among them, in alphabetical order: direct, fanout, headers, topic, …
func (m *Management) ExchangeTypes(ctx context.Context) ([]string, error) {
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
	}
	if _, err := m.one(ctx, "", &overview, "overview"); err != nil {
		return nil, err
	}
	var names []string
	for _, t := range overview.Types {
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return names, nil
}
