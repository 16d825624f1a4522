package metrics

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pagurus/decide/measures"
)

// serves shows many numbers at an address.
func serves(t *testing.T, points int) string {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := measures.Family{Name: "pagurus_test", Help: "A number for each.", Labels: []string{"which"}}
	for i := range points {
		f.Points = append(f.Points, measures.Point{Labels: []string{fmt.Sprint(strings.Repeat("x", 100), i)}, Value: 1})
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		over <- Serve(ctx, l, "monitored.example.org:9464", New("test", func() []measures.Family { return []measures.Family{f} }), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// A page of another site whose name leads here reads nothing.
func TestOnlyItsOwnNamesAreAnswered(t *testing.T) {
	address := serves(t, 1)
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		address: 200, "localhost:9464": 200, "[::1]:9464": 200, here + ":9464": 200, "monitored.example.org": 200, "MONITORED.example.org:9464": 200,
		"evil.example": 403, "evil.example:9464": 403, "127.0.0.1.evil.example": 403, here + ".evil.example": 403,
	} {
		r, err := http.NewRequest(http.MethodGet, "http://"+address+Path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want || strings.Contains(string(text), "pagurus_test") != (want == 200) {
			t.Errorf("%s: %d, %.100s", host, answer.StatusCode, text)
		}
	}
}

// A machine is called by its full name where its network has a domain.
func TestTheFullNameIsItsOwn(t *testing.T) {
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("# x\nnameserver 192.0.2.1\nsearch example.org. lab.example.org\nsearch .\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := names(":9464", file), []string{"localhost", here, here + ".example.org", here + ".lab.example.org", ""}; !slices.Equal(got, want) {
		t.Errorf("it is called %q", got)
	}
	if got := names("host1:9464", file+".gone"); !slices.Equal(got, []string{"localhost", here, "host1"}) {
		t.Errorf("without a domain it is called %q", got)
	}
}

// Many who ask and do not read keep nobody from reading.
func TestSlowReadersDoNotKeepOthersOut(t *testing.T) {
	address := serves(t, 80_000) // more than buffers of the kernel take
	for range 3 * readersMost {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", Path)
		if _, err := bufio.NewReaderSize(c, 16).ReadByte(); err != nil { // it is answered
			t.Fatal(err)
		}
	}
	answer, err := http.Get("http://" + address + Path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), "pagurus_test") {
		t.Errorf("%s, %d bytes: %v", answer.Status, len(text), err)
	}
}
