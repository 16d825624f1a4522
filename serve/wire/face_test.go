package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"pagurus/fleet"
	"pagurus/serve/identity"
)

// whoCalls is a face that says who calls.
type whoCalls struct{}

func (whoCalls) Public(http.ResponseWriter, *http.Request) bool { return false }

func (whoCalls) Serve(a *Acting, w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path == FacePath+"v1/jobs" {
		answer, err := a.Ask(r.Context(), fleet.Request{Verb: fleet.Submit, Spec: &fleet.JobSpec{}})
		return errors.Join(err, reply(w, answer))
	}
	who, err := a.WhoAmI(context.Background())
	if err != nil {
		return err
	}
	return reply(w, who)
}

// TestFacePassedOn: a controller that does not lead passes on who calls its face, by a token or a certificate.
func TestFacePassedOn(t *testing.T) {
	leads, other, nobody := two(t)
	ctx := limited(t)
	ada := dialed(t, Config{Address: other.addr, Credentials: leads.credentials(t, identity.Subject{Role: identity.User, Name: "ada"})})
	ask := func(token string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, ada.base+FacePath+"v1/whoami", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := ada.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	for token, want := range map[string]string{"": `"user":"ada"`, "admin": `"admin":true,"user":"admin"`} {
		if status, text := ask(token); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%q: %d, %s", token, status, text)
		}
	}
	if status, text := ask("nobody"); status != http.StatusUnauthorized || !strings.Contains(text, `"detail":"no such token"`) {
		t.Errorf("%d, %s", status, text)
	}
	local := other.client(t) // who shows a token there submits files of that machine
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, local.base+FacePath+"v1/jobs", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "127.0.0.1"
	r.Header.Set("Authorization", "Bearer ada")
	answer, err := local.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if len(leads.asked) != 1 || leads.asked[0].Spec.Machine != "there" {
		t.Errorf("%s: %+v", answer.Status, leads.asked)
	}
	nobody.Store(true)
	if answer, err := ada.http.Get(ada.base + "/"); err != nil {
		t.Error(err)
	} else {
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || string(text) != "the page" { // which needs nobody who leads
			t.Errorf("%s, %s, %v", answer.Status, text, err)
		}
	}
	if status, text := ask("admin"); status != NotLeading || !strings.Contains(text, `"detail":"no controller leads`) {
		t.Errorf("%d, %s", status, text)
	}
}
