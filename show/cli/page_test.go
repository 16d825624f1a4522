package cli

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// TestPage: the page is named where it is, with a token to log in; who is no user of the cluster is told what to type.
func TestPage(t *testing.T) {
	w := newWorld(t)
	if got := w.pagurus("", "page"); got.code == 0 || !strings.Contains(got.err, "[controller] http") {
		t.Errorf("a controller that listens at its socket only: %+v", got)
	}
	w.stop()
	authority, err := identity.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.members = &members{authority: authority}
	w.serve()
	w.answers(func(fleet.Request) (fleet.Answer, error) { return fleet.Answer{Token: "t1.secret.print"}, nil })
	at := "https://" + w.addr + "/"
	if got := w.pagurus("", "page", "--no-token"); got.code != 0 || !strings.HasPrefix(got.out, at) || strings.Contains(got.out, "token") {
		t.Errorf("%+v", got)
	}
	got := w.pagurus("", "page", "--user", "ada", "--role", "admin", "--ttl", "1h")
	if got.code != 0 || !strings.HasPrefix(got.out, at) || !strings.Contains(got.out, "as ada, an administrator, until") || !strings.Contains(got.out, "`pagurus token rm t1`") || !strings.HasSuffix(got.out, "\nt1.secret.print\n") {
		t.Errorf("%+v", got)
	}
	all := w.Asked()
	asked := all[len(all)-1]
	if k := asked.Token; asked.Verb != fleet.AddToken || !k.Access || k.User != "ada" || k.Role != fleet.AdminRole || time.Until(k.Expires) > time.Hour {
		t.Errorf("%+v, %+v", asked, asked.Token)
	}
	if got := w.pagurus("", "--json", "page", "--user", "ada"); got.code != 0 || !strings.Contains(got.out, `{"addresses":["`+at+`"],"token":"t1.secret.print","expires":"`) {
		t.Errorf("%+v", got)
	}
	none := "an administrator adds one with `pagurus user add"
	if os.Getuid() == 0 {
		none = "`pagurus user add ada --admin --uid 1000 --gid 1000` adds one"
		t.Setenv("SUDO_USER", "")
	}
	for _, args := range [][]string{{"page"}, {"token", "create", "--access"}} {
		if got := w.pagurus("", args...); got.code == 0 || !strings.Contains(got.err, none) || got.out != "" {
			t.Errorf("%v of nobody: %+v", args, got)
		}
	}
	w.Change(func(s *fleet.Snapshot) {
		s.Users = map[fleet.UserID]fleet.User{"bob": {ID: "bob", UID: 7, Role: fleet.UserRole}, "eve": {ID: "eve", UID: 8, Role: fleet.AdminRole}}
	})
	if got := w.pagurus("", "page"); os.Getuid() == 0 && (got.code == 0 || !strings.Contains(got.err, "`pagurus page --user eve --role admin`")) {
		t.Errorf("of root: %+v", got)
	}
}

// TestOwnerPage: the owner's page pauses at the agent, for the owner; who is not the owner gets none.
func TestOwnerPage(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "owner.sock")
	l, err := wire.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	now, asked := fleet.OwnerAnswer{Host: "office3"}, []fleet.OwnerAsk{}
	go func() {
		_ = wire.ServeOwner(t.Context(), l, func(uid uint32, q fleet.OwnerAsk) fleet.OwnerAnswer {
			mu.Lock()
			defer mu.Unlock()
			if uid != uint32(os.Getuid()) {
				return fleet.OwnerAnswer{Refused: "who?"}
			}
			if asked = append(asked, q); q.Verb == fleet.OwnerPause {
				now.Pause = true
			}
			return now
		})
	}()
	ctx, stop := context.WithCancel(t.Context())
	var out safe
	over := make(chan error)
	go func() {
		root := Root(Options{Args: []string{"owner", "page", "--owner-socket", socket}, Out: &out, Err: &out})
		over <- root.ExecuteContext(ctx)
	}()
	testkit.Until(t, 20*time.Second, "the link is printed", func() bool { return strings.Contains(out.String(), "works once") })
	link := regexp.MustCompile(`(http://127\.0\.0\.1:\d+)/#(\w+)\n`).FindStringSubmatch(out.String())
	if link == nil {
		t.Fatal(out.String())
	}
	post := func(at, body, key string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, link[1]+at, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Origin": {link[1]}, "Content-Type": {"application/json"}, "Authorization": {"Bearer " + key}}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %s %v", at, answer.Status, text, err)
		}
		return string(text)
	}
	key := regexp.MustCompile(`"session":"(\w+)"`).FindStringSubmatch(post("/owner/session", `{"secret": "`+link[2]+`"}`, ""))
	if key == nil {
		t.Fatal("no key")
	}
	if got := post("/owner/ask", `{"verb": "pause"}`, key[1]); !strings.Contains(got, "office3 is yours until") {
		t.Error(got)
	}
	mu.Lock()
	if len(asked) != 3 || asked[0].Verb != fleet.OwnerStatus || asked[1].Verb != fleet.OwnerPause || asked[2].Verb != fleet.OwnerHistory {
		t.Errorf("%+v", asked)
	}
	now.Refused = "this machine's owners are others"
	mu.Unlock()
	root := Root(Options{Args: []string{"owner", "page", "--owner-socket", socket}, Out: &out, Err: &out})
	if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "owners are others") {
		t.Error(err)
	}
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
