package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
)

// ship stands for a service that fails two times in three.
func ship(_ context.Context, o Order) error {
	if rand.IntN(3) > 0 {
		fmt.Printf("order %s: the warehouse does not answer\n", o.ID)
		return errors.New("call the warehouse: timeout")
	}
	fmt.Printf("order %s: shipped\n", o.ID)
	return nil
}
