package cli

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/api"
)

// byHTTP asks the world's interface for programs.
func (w *world) byHTTP(method, path, body string) (int, string) {
	w.t.Helper()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
	}}}
	r, err := http.NewRequest(method, "http://localhost"+api.Prefix+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// peopled has one of each thing, and time stands still.
func peopled(t *testing.T) *world {
	w := newWorld(t)
	w.answers(func(fleet.Request) (fleet.Answer, error) { return fleet.Answer{Notes: []string{"<noted>"}}, nil })
	w.Change(func(s *fleet.Snapshot) {
		s.Jobs["j1"] = fleet.Job{ID: "j1", State: fleet.JobEnded, Spec: fleet.JobSpec{Args: []string{"<script>"}, Trace: true}}
		s.Guests["j1g0"] = fleet.Guest{ID: "j1g0", Job: "j1", Home: "host1", State: fleet.GuestRunning}
		s.Moves["m1"] = fleet.Move{ID: "m1", Migrations: []fleet.MigrationID{"m1a"}}
		s.Migrations["m1a"] = fleet.Migration{ID: "m1a", Guest: "j1g0", Job: "j1", From: "host1", To: "host2", Phase: fleet.Finished}
		s.Checkpoints["j1c1"] = fleet.Checkpoint{ID: "j1c1", Job: "j1"}
		s.Tokens["t1"] = fleet.JoinToken{ID: "t1", Role: fleet.HostRole}
		s.Users["ada"] = fleet.User{ID: "ada", Role: fleet.UserRole, UID: 1000}
	})
	return w
}

// TestJSON: what --json prints is what the interface for programs answers, byte for byte.
func TestJSON(t *testing.T) {
	w := peopled(t)
	for _, c := range []struct{ command, path string }{
		{"job ls", "/jobs"}, {"job show j1", "/jobs/j1"}, {"job explain j1", "/jobs/j1/explanation"}, {"guest ls", "/guests"},
		{"guest explain j1g0", "/guests/j1g0/explanation"}, {"host ls", "/hosts"}, {"host explain host1", "/hosts/host1/explanation"},
		{"host policy host1", "/hosts/host1/policy"}, {"move ls", "/moves"}, {"move show m1", "/moves/m1"}, {"move explain m1", "/moves/m1/explanation"},
		{"checkpoint ls", "/checkpoints"}, {"checkpoint ls j1", "/checkpoints?job=j1"}, {"checkpoint ls j2", "/checkpoints?job=j2"}, {"checkpoint show j1c1", "/checkpoints/j1c1"},
		{"policy ls", "/policies"}, {"policy show predictive", "/policies/predictive"}, {"user ls", "/users"}, {"token ls", "/tokens"},
		{"usage", "/usage"}, {"sites", "/sites"}, {"health", "/health"}, {"whoami", "/whoami"}, {"predict --score", "/score"}, {"wait j1", "/jobs/j1/wait"},
	} {
		got := w.pagurus("", append([]string{"--json"}, strings.Fields(c.command)...)...)
		status, answer := w.byHTTP(http.MethodGet, c.path, "")
		if status != http.StatusOK || got.out == "" || ageless(t, got.out) != ageless(t, answer) || strings.Contains(answer, "<") {
			t.Errorf("%s: %d\n%s--json prints:\n%s%s", c.path, status, answer, got.out, got.err)
		}
	}
}

// TestUsageForms: what usage prints in other forms is what the interface for programs answers.
func TestUsageForms(t *testing.T) {
	w := peopled(t)
	times := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d`) // what is told depends on when it is asked for
	for _, c := range []struct{ command, path, has string }{
		{"--csv", "/usage/csv", "ada,4711,,,1,,,,,10800.000,"},
		{"--csv --by job --user ada", "/usage/csv?by=job&user=ada", ",j7,"},
		{"--csv --host host2 --user 4711", "/usage/csv?host=host2&user=4711", ",3600.000,"},
		{"--csv --user 1", "/usage/csv?user=1", "cpu_seconds"},
		{"--sacct", "/usage/sacct", "7|7|physics|all|normal|ada|"},
		{"--sacct --user ada", "/usage/sacct?user=ada", "|COMPLETED|"},
		{"--sacct --user 1", "/usage/sacct?user=1", ""},
	} {
		got := w.pagurus("", append([]string{"usage"}, strings.Fields(c.command)...)...)
		status, answer := w.byHTTP(http.MethodGet, c.path, "")
		if status != http.StatusOK || !strings.Contains(answer, c.has) || times.ReplaceAllString(got.out, "T") != times.ReplaceAllString(answer, "T") {
			t.Errorf("%s: %d\n%susage %s prints:\n%s%s", c.path, status, answer, c.command, got.out, got.err)
		}
	}
	for _, path := range []string{"/usage?user=bob", "/usage/csv?user=bob", "/usage/sacct?user=bob"} {
		if status, answer := w.byHTTP(http.MethodGet, path, ""); status != http.StatusUnprocessableEntity || !strings.Contains(answer, `there is no user \"bob\"`) {
			t.Errorf("%s: %d, %s", path, status, answer)
		}
	}
	if status, answer := w.byHTTP(http.MethodGet, "/usage/csv?by=moon", ""); status != http.StatusBadRequest || !strings.Contains(answer, "moon") {
		t.Errorf("%d, %s", status, answer)
	}
	got, rows := w.pagurus("", "--json", "usage", "--user", "ada"), ""
	if _, rows = w.byHTTP(http.MethodGet, "/usage?user=ada", ""); ageless(t, got.out) != ageless(t, rows) || !strings.Contains(rows, `"ada"`) {
		t.Errorf("%s%s", got.out, rows)
	}
}

// ageless leaves out what follows from the time: how long a host was not heard, and which days were asked for.
func ageless(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if fields, is := v.(map[string]any); is && fields["until"] != nil { // of now
		delete(fields, "since")
		delete(fields, "until")
		out, _ := json.Marshal(v)
		text = string(out)
	}
	if rows, is := v.([]any); is {
		for _, row := range rows {
			if fields, is := row.(map[string]any); is {
				if _, silent := fields["silent_ns"]; silent {
					delete(fields, "silent_ns")
					out, _ := json.Marshal(v)
					text = string(out)
				}
			}
		}
	}
	return text
}

// TestSameRequests: a command and its operation ask the controller for the same, and print its sentence where it refuses.
func TestSameRequests(t *testing.T) {
	w := peopled(t)
	for _, c := range []struct{ command, method, path, body string }{
		{"cancel --grace 5s j1", "POST", "/jobs/j1/cancel", `{"grace_ns":5000000000}`}, {"job rm j1", "DELETE", "/jobs/j1", ""},
		{"signal j1 USR1", "POST", "/jobs/j1/signal", `{"signal":"USR1"}`}, {"suspend j1", "POST", "/jobs/j1/suspend", ""}, {"resume j1", "POST", "/jobs/j1/resume", ""},
		{"resume j1 --on host1,host2", "POST", "/jobs/j1/resume", `{"on":["host1","host2"]}`},
		{"restart j1 --from j1c1", "POST", "/jobs/j1/restart", `{"checkpoint":"j1c1"}`}, {"restart j1 --from-beginning", "POST", "/jobs/j1/restart", `{"beginning":true}`},
		{"checkpoint j1", "POST", "/jobs/j1/checkpoints", ""}, {"checkpoint rm j1c1", "DELETE", "/checkpoints/j1c1", ""},
		{"migrate j1g0 --to host2", "POST", "/moves", `{"guests":["j1g0"],"to":"host2"}`}, {"migrate --job j1 --to-site here", "POST", "/moves", `{"job":"j1","to_site":"here"}`},
		{"move cancel m1", "POST", "/moves/m1/cancel", ""}, {"drain host1", "POST", "/hosts/host1/drain", ""}, {"undrain host1", "POST", "/hosts/host1/undrain", ""},
		{"forget host1", "DELETE", "/hosts/host1", ""}, {"host claim host1", "POST", "/hosts/host1/claim", ""}, {"host release host1", "POST", "/hosts/host1/release", ""},
		{"token rm t1", "DELETE", "/tokens/t1", ""}, {"user rm ada", "DELETE", "/users/ada", ""}, {"policy set evacuate", "PUT", "/policy", `{"vacate":"evacuate"}`},
	} {
		w.Forget()
		got := w.pagurus("", strings.Fields(c.command)...)
		status, answer := w.byHTTP(c.method, c.path, c.body)
		asked := w.Asked()
		if len(asked) != 2 || got.code != 0 || status != http.StatusOK {
			t.Errorf("%s: %+v; %d, %s%s", c.command, asked, status, answer, got.err)
			continue
		}
		asked[0].ID, asked[1].ID = "", ""
		if !reflect.DeepEqual(asked[0], asked[1]) {
			t.Errorf("%s asks\n%+v\nand %s\n%+v", c.command, asked[0], c.path, asked[1])
		}
	}
	w.answers(nil) // refuses
	got := w.pagurus("", "drain", "host1")
	status, answer := w.byHTTP("POST", "/hosts/host1/drain", "")
	var p struct{ Detail string }
	if err := json.Unmarshal([]byte(answer), &p); err != nil || status != http.StatusUnprocessableEntity || got.err != "pagurus: "+p.Detail+"\n" {
		t.Errorf("%d, %s; %s", status, answer, got.err)
	}
}

// TestEveryCommand: each command has an operation or a reason, and each operation's command is there with its help.
func TestEveryCommand(t *testing.T) {
	root := Root(Options{})
	covered := map[string]bool{}
	for _, o := range api.Operations {
		covered[o.Command] = true
		covered[o.Command[strings.LastIndex(o.Command, " ")+1:]] = true // where the verb works alone
		if cmd, _, err := root.Find(strings.Fields(o.Command)); o.Command != "" && err == nil && cmd.CommandPath() == "pagurus "+o.Command && cmd.Short != o.Summary && o.ID != "makeCheckpoint" {
			t.Errorf("the help of %s is %q, and %s says %q", o.Command, cmd.Short, o.ID, o.Summary)
		}
	}
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			path := strings.TrimPrefix(sub.CommandPath(), "pagurus ")
			if alone, _, err := root.Find([]string{sub.Name()}); err == nil && !alone.HasSubCommands() && alone.Name() == sub.Name() {
				path = sub.Name() // the verb works alone, and so it is looked at once
			}
			if sub.HasSubCommands() {
				look(sub)
			} else if !covered[path] && api.Alone[path] == "" && sub.Name() != "man" && sub.Name() != "help" && sub.Name() != "explain" && path != "host show" {
				t.Errorf("%s has no operation and no reason", path)
			}
		}
	}
	look(root)
}
