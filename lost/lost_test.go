package lost

import (
	"reflect"
	"testing"

	"github.com/hopback/hopback"
)

// The binding that Return makes must be the one that a route makes: another
// would be a second way back, and every message would come twice.
func TestBindingIsTheRoutes(t *testing.T) {
	top, err := hopback.Topology("hop", hopback.Route{Queue: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range top.Bindings {
		if b.Source == "hop.return" && b.Destination == "orders" {
			if b.Key != "" || !reflect.DeepEqual(b.Args, returnArgs("orders")) {
				t.Errorf("a route's binding is %+v, ours has %v", b, returnArgs("orders"))
			}
			return
		}
	}
	t.Error("a route has no binding to the way back")
}
