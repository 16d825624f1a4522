package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"pagurus/fleet"
)

// problemOf is the sentence of a problem, which the answer has to be.
func problemOf(t *testing.T, status int, h http.Header, body string) string {
	t.Helper()
	var p struct {
		Title, Detail string
		Status        int
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil || h.Get("Content-Type") != "application/problem+json" || p.Status != status || p.Title != http.StatusText(status) {
		t.Errorf("%d with %v is no problem of RFC 9457: %s (%v)", status, h, body, err)
	}
	return p.Detail
}

// TestRefused: what is refused, with which status and sentence.
func TestRefused(t *testing.T) {
	w := newTown(t)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		says                     string
	}{
		{"nobody", "GET", Prefix + "/jobs", "", nil, 401, "send a token"},
		{"a wrong token", "GET", Prefix + "/jobs", "", []string{"Authorization: Bearer x"}, 401, "does not know the token"},
		{"another scheme", "GET", Prefix + "/jobs", "", []string{"Authorization: Basic YWRtaW4="}, 401, "Authorization: Bearer"},
		{"a cookie is nobody", "GET", Prefix + "/jobs", "", []string{"Cookie: token=admin; Authorization=admin"}, 401, "send a token"},
		{"a token in the URL", "GET", Prefix + "/jobs?access_token=admin", "", nil, 400, "kept in logs"},
		{"a token in the URL, and one in the header", "GET", Prefix + "/jobs?Token=admin", "", []string{asAdmin}, 400, "kept in logs"},
		{"a page of another site", "GET", Prefix + "/jobs", "", []string{asAdmin, "Origin: http://evil.example"}, 403, "another site"},
		{"a page without an origin", "POST", Prefix + "/hosts/host1/drain", "{}", []string{asAdmin, "Origin: null"}, 403, "another site"},
		{"the same host over another scheme", "GET", Prefix + "/jobs", "", []string{asAdmin, "Origin: https://" + w.addr}, 403, "another site"},
		{"what a browser says of another site", "GET", Prefix + "/jobs", "", []string{asAdmin, "Sec-Fetch-Site: cross-site"}, 403, "another site"},
		{"what a browser says of a sibling", "GET", Prefix + "/jobs", "", []string{asAdmin, "Sec-Fetch-Site: same-site"}, 403, "another site"},
		{"a name of somebody else", "GET", Prefix + "/jobs", "", []string{asAdmin, "Host: rebound.example:80"}, 403, "is not this controller"},
		{"a name of somebody else, for what is public", "GET", Prefix + "/authority", "", []string{"Host: rebound.example"}, 403, "is not this controller"},
		{"a question before a request of another site", "OPTIONS", Prefix + "/jobs", "", []string{"Origin: http://evil.example", "Access-Control-Request-Method: POST"}, 403, "another site"},
		{"a form", "POST", Prefix + "/hosts/host1/drain", "limits=", []string{asAdmin, "Content-Type: application/x-www-form-urlencoded"}, 415, "Content-Type: application/json"},
		{"plain text", "POST", Prefix + "/hosts/host1/drain", "{}", []string{asAdmin, "Content-Type: text/plain"}, 415, "Content-Type: application/json"},
		{"no such thing", "GET", Prefix + "/jbos", "", []string{asAdmin}, 404, "openapi.json"},
		{"another method", "PUT", Prefix + "/hosts/host1/drain", "{}", []string{asAdmin}, 405, "takes POST"},
		{"no such job", "GET", Prefix + "/jobs/j9", "", []string{asAdmin}, 404, `there is no job "j9": `},
		{"a parameter that is not there", "GET", Prefix + "/jobs?stat=ended", "", []string{asAdmin}, 400, "no parameter"},
		{"a field that is not there", "POST", Prefix + "/hosts/host1/drain", `{"to":"host2"}`, []string{asAdmin}, 400, `does not take "to"`},
		{"who asks", "POST", Prefix + "/hosts/host1/drain", `{"by":{"admin":true}}`, []string{"Authorization: Bearer ada"}, 400, `does not take "by"`},
		{"another host than the path's", "POST", Prefix + "/hosts/host1/drain", `{"host":"host2"}`, []string{asAdmin}, 400, `does not take "host"`},
		{"another user than the path's", "PUT", Prefix + "/users/ada", `{"id":"grace"}`, []string{asAdmin}, 400, "the path about"},
		{"a field in a field", "POST", Prefix + "/hosts/host1/drain", `{"limits":{"speed":1}}`, []string{asAdmin}, 400, "cannot be understood"},
		{"no JSON", "POST", Prefix + "/hosts/host1/drain", `{`, []string{asAdmin}, 400, "not a JSON object"},
		{"null", "POST", Prefix + "/hosts/host1/drain", `null`, []string{asAdmin}, 400, "not a JSON object"},
		{"null in place of an object", "PUT", Prefix + "/users/ada", `null`, []string{asAdmin}, 400, "not a JSON object"},
		{"nothing in place of an object", "PUT", Prefix + "/policy", ``, []string{asAdmin}, 400, "needs a body"},
		{"a refusal", "POST", Prefix + "/hosts/host9/drain", ``, []string{asAdmin}, 422, "there is no host <b>host9</b>: `pagurus host ls` lists them"},
		{"too much", "POST", Prefix + "/hosts/host1/drain", `{"limits":"` + strings.Repeat("x", 1<<20) + `"}`, []string{asAdmin}, 413, "larger than"},
		{"kinds that are not there", "GET", Prefix + "/events?kinds=job,ghost", "", []string{asAdmin}, 400, `"ghost"`},
		{"an audit, to a user", "GET", Prefix + "/audit", "", []string{"Authorization: Bearer ada"}, 403, "only an administrator"},
		{"a token made by a token", "POST", Prefix + "/tokens", `{"access":true,"role":"admin","user":"admin"}`, []string{asAdmin}, 403, "log in for that"},
		{"a login made by a token", "POST", Prefix + "/tokens", `{"role":"admin","user":"admin","uses":1}`, []string{asAdmin}, 403, "log in for that"},
		{"a controller let in by a token", "POST", Prefix + "/tokens", `{"role":"controller","uses":1}`, []string{asAdmin}, 403, "log in for that"},
		{"the logout of a token", "POST", Prefix + "/logout", ``, []string{asAdmin}, 422, "pagurus token rm t1"},
	} {
		status, h, body := w.asks(c.method, c.path, c.body, c.headers...)
		if says := problemOf(t, status, h, body); status != c.status || !strings.Contains(says, c.says) {
			t.Errorf("%s: %d, %s", c.name, status, says)
		}
		for name := range h {
			if strings.HasPrefix(name, "Access-Control-") || name == "Set-Cookie" {
				t.Errorf("%s: the answer has %s", c.name, name)
			}
		}
	}
	for _, q := range w.Asked() {
		if q.Host != "host9" {
			t.Errorf("%+v was asked", q)
		}
	}
	if status, _, _ := w.asks("GET", "/v1/snapshot", "", asAdmin); status != http.StatusNotFound {
		t.Errorf("the protocol answers where programs ask: %d", status)
	}
}

// TestAsked: an operation makes the request that its path and its body say, and its answer is the controller's.
func TestAsked(t *testing.T) {
	w := newTown(t)
	status, _, body := w.asks("POST", Prefix+"/hosts/host1/drain", `{"limits":{"bytes_per_second":7,"downtime_ns":0,"rounds":0}}`, asAdmin, "Idempotency-Key: once", "Origin: http://"+w.addr, "Sec-Fetch-Site: same-origin")
	if status != http.StatusOK || body != `{"moves":["m1"]}`+"\n" {
		t.Fatalf("%d, %s", status, body)
	}
	w.asks("PUT", Prefix+"/users/grace", `{"role":"user","uid":1001,"gid":100,"since":"0001-01-01T00:00:00Z"}`, asAdmin)
	w.asks("DELETE", Prefix+"/tokens/0a0b", "", asAdmin)
	w.asks("POST", Prefix+"/jobs/j1/cancel", "", "Authorization: Bearer ada", "Idempotency-Key: once") // as another user names theirs
	asked := w.Asked()
	if q := asked[0]; len(asked) != 4 || asked[3].ID != "1000/once" || q.Verb != fleet.Drain || q.Host != "host1" || q.Limits.BytesPerSecond != 7 || q.ID != "1/once" || q.By.User != "admin" {
		t.Errorf("%+v", asked)
	}
	if asked[0].Asks == "" || asked[1].Asks != "" {
		t.Errorf("a request with a key has no digest, or one without has: %+v", asked)
	}
	same := func(body string) string {
		w.asks("POST", Prefix+"/hosts/host1/drain", body, asAdmin, "Idempotency-Key: once")
		all := w.Asked()
		return all[len(all)-1].Asks
	}
	if same(`{ "limits": {"rounds":0, "downtime_ns":0, "bytes_per_second":7} }`) != asked[0].Asks {
		t.Error("the same body, laid out otherwise, asks something else")
	}
	if same(`{"limits":{"bytes_per_second":8,"downtime_ns":0,"rounds":0}}`) == asked[0].Asks || asked[3].Asks == asked[0].Asks {
		t.Error("another body, or another operation, asks the same")
	}
	if q := asked[1]; q.Verb != fleet.SetUser || q.User.ID != "grace" || q.User.UID != 1001 {
		t.Errorf("%+v", q)
	}
	if q := asked[2]; q.Verb != fleet.DropToken || q.Token.ID != "0a0b" {
		t.Errorf("%+v", q)
	}
}

// TestScripts: what jobs are called is text, wherever it is sent.
func TestScripts(t *testing.T) {
	w := newTown(t)
	const script = "</script><script>alert(1)</script>\r\nevent: gone\r\ndata: {}\r\n\r\n\u2028"
	w.Change(func(s *fleet.Snapshot) {
		s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobRunning, Spec: fleet.JobSpec{Args: []string{script}, UID: 1000}}
	})
	status, h, body := w.asks("GET", Prefix+"/jobs", "", "Authorization: Bearer ada")
	if status != http.StatusOK || strings.ContainsAny(body, "<>\u2028") || h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("Cache-Control") != "no-store" {
		t.Errorf("%d, %v: %s", status, h, body)
	}
	var rows []struct{ Spec struct{ Args []string } }
	if err := json.Unmarshal([]byte(body), &rows); err != nil || len(rows) != 1 || rows[0].Spec.Args[0] != script {
		t.Errorf("%v, %v", rows, err)
	}
	for _, e := range w.watches("?kinds=job", "ada", "").until("ready") {
		if e.name == "gone" || strings.ContainsAny(e.data, "<>") {
			t.Errorf("%+v", e)
		}
	}
}

// TestPublic: what anybody may read.
func TestPublic(t *testing.T) {
	w := newTown(t)
	if status, h, body := w.asks("GET", Prefix+"/openapi.json", ""); status != http.StatusOK || h.Get("Content-Type") != "application/json" || body != string(Document) {
		t.Errorf("%d, %v", status, h)
	}
	if status, _, body := w.asks("GET", Prefix+"/authority", ""); status != http.StatusOK || body != "the certificate" {
		t.Errorf("%d, %s", status, body)
	}
}

// TestOperations: names and paths are each one operation's, and bodies are fields of a request.
func TestOperations(t *testing.T) {
	ids, routes := map[string]bool{}, map[string]bool{}
	for _, o := range Operations {
		if ids[o.ID] || routes[o.Method+o.Path] {
			t.Errorf("%s or %s %s is there twice", o.ID, o.Method, o.Path)
		}
		ids[o.ID], routes[o.Method+o.Path] = true, true
		if (o.do == nil) == (o.raw == nil) || o.Gives == nil && o.Media == "" || o.Summary == "" {
			t.Errorf("%s is not whole", o.ID)
		}
	}
}
