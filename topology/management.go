package topology

import "net/http"

// Management reads a broker's management API.
type Management struct {
	URL   string // http://user:password@host:port
	Vhost string
	HTTP  *http.Client
}
