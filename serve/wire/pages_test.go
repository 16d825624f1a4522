package wire

import (
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"pagurus/serve/identity"
)

// TestPages: the page is named by the addresses at which it is served, what a browser opens without a question first.
func TestPages(t *testing.T) {
	authority, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	open := func(l net.Listener, err error) net.Listener {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	port := func(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }
	socket := open(ListenUnix(filepath.Join(t.TempDir(), "s")))
	all, plain, tls := open(ListenTLS(":0", authority)), open(ListenFace("127.0.0.1:0", authority, true)), open(ListenFace("127.0.0.1:0", authority, false))
	c := ServeConfig{Listeners: []net.Listener{socket, all}, Faces: []net.Listener{plain, tls}, Page: http.NotFoundHandler()}
	if got, want := c.pages(), []string{"http://127.0.0.1:" + port(plain) + "/", "https://127.0.0.1:" + port(tls) + "/", "https://localhost:" + port(all) + "/"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	if c.Listeners = c.Listeners[:1]; len(c.pages()) != 2 {
		t.Errorf("%q", c.pages())
	}
	c.Page = nil
	if got := c.pages(); len(got) != 0 {
		t.Errorf("no page is at %q", got)
	}
}
