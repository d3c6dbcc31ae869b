package simulate_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/simulate"
)

// In a test: our policy parks nothing in an outage of a minute.
func ExampleRun() {
	ours := hopback.Policy{Schedule: hopback.Schedule{Max: 30 * time.Second}, MaxRetries: 20}
	report, err := simulate.Run(context.Background(), simulate.Outage(time.Minute), simulate.Policy("ours", ours))
	if err != nil || report.Results[0].ParkedNeedlessly > 0 {
		fmt.Println("our policy does not survive an outage of a minute:", err)
	}
	fmt.Println(report.Results[0].Sent, "sent,", report.Results[0].ParkedNeedlessly, "parked")
	// Output:
	// 3500 sent, 0 parked
}

// Contenders side by side, and the verdict in words.
func ExampleReport_Verdict() {
	none, _ := simulate.Preset("none")
	full, _ := simulate.Preset("full")
	none.Route.Policy.MaxRetries, full.Route.Policy.MaxRetries = 10, 10
	s := simulate.Scenario{
		Traffic:    []simulate.Traffic{{Messages: 200}},
		Consumers:  simulate.Consumers{Count: 100, Concurrency: 2},
		Dependency: simulate.Dependency{Capacity: 30, Spells: []simulate.Spell{{For: 10 * time.Second}}},
	}
	report, err := simulate.Run(context.Background(), s, none, full)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ship", report.Ranking()[0].Contender.Name)
	fmt.Println("peak below the other's:", report.Find("full").Peak < report.Find("none").Peak)
	// Output:
	// ship full
	// peak below the other's: true
}
