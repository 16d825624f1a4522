package roles

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"pagurus/serve/wire"
	"pagurus/show/cli"
)

// configFile writes a file and those in conf.d beside it, and gives its path.
func configFile(t *testing.T, text string, beside map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.MkdirAll(filepath.Join(filepath.Dir(path), configFolder), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range beside {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), configFolder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A mistake is told with its line and what to write instead.
func TestMistakesInConfiguration(t *testing.T) {
	for _, c := range []struct {
		name, text string
		wants      []string
	}{
		{"nothing", "", nil},
		{"comments and a BOM", "\ufeff# c\n\n[agent]\nhost = \"x\"\n", nil},
		{"a broken line", "[agent]\nhost = \n", []string{"f:2: "}},
		{"no UTF-8", "[agent]\nhost = \"\xff\"\n", []string{"f:2: "}},
		{"a table twice", "[agent]\nhost = \"a\"\n\n[agent]\nsite = \"b\"\n", []string{"f:4: "}},
		{"a key twice", "[agent]\nhost = \"a\"\nhost = \"b\"\n", []string{"f:3: "}},
		{"a size", "[agent]\n\nmemory = \"5X\"", []string{`f:3: agent.memory: "5X" is not a size: write it like 512M or 1.5G`}},
		{"a size by number", "[agent]\nmemory = 4294967296", nil},
		{"a rate", "[agent]\nbandwidth = \"fast\"", []string{`f:2: agent.bandwidth: "fast" is not a rate`}},
		{"a duration", "[agent]\nslice = \"3 parsec\"", []string{`f:2: agent.slice: "3 parsec" is not a duration`}},
		{"a duration without unit", "[agent]\nslice = 30", []string{`f:2: agent.slice: "30" is not a duration`}},
		{"a word in the place of a duration", "[agent]\nslice = \"adaptive\"", nil},
		{"a number", "[agent]\nsnapshots = \"many\"", []string{`f:2: agent.snapshots: "many" is not a number`}},
		{"half a number", "[agent]\nsnapshots = 1.5", []string{`f:2: agent.snapshots: "1.5" is not a number`}},
		{"an encryption", "[agent]\nencryption = \"ipsec\"", []string{`f:2: agent.encryption: "ipsec" is not a way to encrypt; write auto, wireguard or none`}},
		{"encryptions", "[agent]\nencryption = \"wireguard\"\nwireguard-port = 7000\n[controller]\nencryption = \"none\"", nil},
		{"a port", "[agent]\nwireguard-port = 70000", []string{`f:2: agent.wireguard-port: "70000" is not a number`}},
		{"a boolean", "[agent]\nverbose = \"perhaps\"", []string{`f:2: agent.verbose: "perhaps" is neither true nor false`}},
		{"booleans", "[agent]\nverbose = true\n[controller]\nverbose = \"false\"", nil},
		{"text without quotes", "[agent]\nsite = 2.50", []string{`f:2: agent.site: takes text: write it in quotes, as "2.5"`}},
		{"a date", "[agent]\nslice = 2026-01-02", []string{"f:2: agent.slice: takes no date or time"}},
		{"a list", "[controller]\netcd = [\"a:1\", \"b:1\"]", nil},
		{"a list of numbers", "[controller]\netcd = [\"a:1\",\n 2]", []string{"f:2: controller.etcd: takes a list of texts"}},
		{"a number for a list", "[controller]\netcd = 2", []string{"f:2: controller.etcd: takes text"}},
		{"a list for one", "[agent]\nhost = [\"a\"]", []string{"f:2: agent.host: takes one value, not a list"}},
		{"a table for one", "[agent.host]\na = 1", []string{"f:1: agent.host: takes a value, not a table"}},
		{"a key", "[agent]\nmemry = 1", []string{"f:2: there is no key agent.memry, did you mean agent.memory?"}},
		{"a key of the other", "[agent]\netcd = [\"a:1\"]", []string{"f:2: there is no key agent.etcd, but [controller] has one"}},
		{"a key like none", "[agent]\ncolour = 1", []string{"f:2: there is no key agent.colour"}},
		{"a hidden flag", "[controller]\npurpose = \"x\"", []string{"f:2: there is no key controller.purpose"}},
		{"an action", "[agent]\nsweep = true", []string{"f:2: there is no key agent.sweep"}},
		{"a table of nobody", "[colours]", []string{"f:1: there is no table [colours], only [agent] and [controller]"}},
		{"a table like one", "\n[agnt]\n", []string{"f:2: there is no table [agnt], did you mean [agent]?"}},
		{"tables in a list", "[[agent]]\nhost = \"a\"", []string{"f:1: agent is a table: write [agent], and its keys below it"}},
		{"a key in no table", "host = \"a\"", []string{"f:1: host is in no table: write it below [agent] or [controller]"}},
		{"dots and braces", "agent.host = \"a\"\ncontroller = { listen = \"b:1\", x = 1 }", []string{"f:2: there is no key controller.x"}},
		{"a key in quotes", "[agent]\n\"ho\\u0073t\" = \"a\"\n\"\\u001b[2J\" = 1", []string{"f:3: there is no key agent.?[2J"}},
		{"several", "[agent]\nx = 1\n[b]\n[controller]\nlisten = 1\ny = 1", []string{"f:2: there is no key agent.x", "f:3: ", "f:5: ", "f:6: "}},
	} {
		_, errs := parseConfig("f", []byte(c.text))
		if len(errs) != len(c.wants) {
			t.Errorf("%s: %q, want %q", c.name, errs, c.wants)
			continue
		}
		for i, want := range c.wants {
			if !strings.HasPrefix(errs[i].Error(), want) || strings.Contains(errs[i].Error(), "\n") {
				t.Errorf("%s: %q, want %q", c.name, errs[i], want)
			}
		}
	}
}

// The command line counts more than the environment, that more than files, of which the last
// wins, and those more than defaults.
func TestWhichValueWins(t *testing.T) {
	path := configFile(t, "[agent]\nhost = \"a\"\nsite = \"s\"\ncpus = 2\ncontroller = \"file:1\"\ncredentials = \"/file\"\n[controller]\netcd = [\"a:1\"]\n", map[string]string{
		"20.toml": "[agent]\nhost = \"c\"\n[controller]\netcd = \"c:1,d:1\"", "10.toml": "\nagent.host = \"b\"\ncontroller.etcd = \"b:1\"",
		"30.conf": "nonsense", ".40.toml": "nonsense",
	})
	t.Setenv(wire.ControllerVariable, "environment:1")
	t.Setenv(wire.CredentialsVariable, "")
	var a Agent
	var c Controller
	agent, controller := pflag.NewFlagSet("", 0), pflag.NewFlagSet("", 0)
	a.Add(agent)
	cli.Locate(agent)
	c.Add(controller, ":1")
	for _, flags := range []*pflag.FlagSet{agent, controller} {
		AddConfig(flags)
		if err := flags.Parse([]string{"--config", path}); err != nil {
			t.Fatal(err)
		}
	}
	if err := agent.Set("site", "typed"); err != nil {
		t.Fatal(err)
	}
	if err := configure(agent, AgentTable); err != nil {
		t.Fatal(err)
	}
	if err := configure(controller, ControllerTable); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(filepath.Dir(path), configFolder)
	for name, want := range map[string][2]string{
		"host": {"c", folder + "/20.toml:2"}, "site": {"typed", "flag"}, "cpus": {"2", path + ":4"}, "snapshots": {"4", "default"},
		"controller": {"environment:1", "environment PAGURUS_CONTROLLER"}, "credentials": {"/file", path + ":6"},
	} {
		if f := agent.Lookup(name); Value(f) != want[0] || Source(f) != want[1] {
			t.Errorf("%s is %q from %s, want %q", name, Value(f), Source(f), want)
		}
	}
	if want := []string{"c:1", "d:1"}; !slices.Equal(c.Etcd, want) || c.Listen != ":1" {
		t.Errorf("the controller has %+v", c)
	}
	if !Chosen(agent, "host") || !Chosen(agent, "site") || Chosen(agent, "snapshots") {
		t.Error("what was chosen is not told from defaults")
	}
	if got := Given(agent, agent); !slices.Equal(got, []string{"--config=" + path, "--site=typed"}) {
		t.Errorf("values of files are given on as flags: %q", got)
	}
}

// The file is chosen by a flag, otherwise by the environment; the machine's may be missing.
func TestWhichFileIsRead(t *testing.T) {
	given, variable := configFile(t, "[agent]\nhost = \"given\"", nil), configFile(t, "[agent]\nhost = \"variable\"", nil)
	for _, c := range []struct {
		args []string
		set  string
		want string
	}{{[]string{"--config", given}, variable, "given"}, {nil, variable, "variable"}, {[]string{NoConfig}, variable, "default"}, {nil, "", "default"}} {
		t.Setenv(ConfigVariable, c.set)
		flags := pflag.NewFlagSet("", 0)
		host := flags.String("host", "default", "")
		AddConfig(flags)
		if err := flags.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := configure(flags, AgentTable); err != nil || *host != c.want {
			t.Errorf("%v with %q: %s, %v; want %s", c.args, c.set, *host, err, c.want)
		}
	}
	missing := filepath.Join(t.TempDir(), "config.toml")
	if c := ReadConfigFile(missing, false); len(c.Errors) > 0 {
		t.Errorf("without a configuration: %v", c.Errors)
	}
	if c := ReadConfigFile(missing, true); len(c.Errors) != 1 {
		t.Errorf("a chosen file is missing: %v", c.Errors)
	}
}

// What cannot be read is refused, and does not make a daemon wait.
func TestFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	large := "[agent]\nhost = \"x\"\n#" + strings.Repeat("x", configLimit-len("[agent]\nhost = \"x\"\n#"))
	for name, text := range map[string]string{"whole": large, "larger": large + "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"whole": "", "larger": "is larger than 1 MiB", "pipe": "is not a file", "": "is not a file", "nowhere": "there is no file"} {
		c := ReadConfigFile(filepath.Join(dir, name), true)
		switch {
		case want == "" && (len(c.Errors) > 0 || len(c.settings) != 1):
			t.Errorf("%q: %v", name, c.Errors)
		case want != "" && (len(c.Errors) != 1 || !strings.Contains(c.Errors[0].Error(), want)):
			t.Errorf("%q: %v, want %q", name, c.Errors, want)
		}
	}
	path := configFile(t, "", map[string]string{"a.toml": "[agent]\ncpus = \"x\"", "b.toml": "x"})
	if err := os.Mkdir(filepath.Join(filepath.Dir(path), configFolder, "c.toml"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := ReadConfigFile(path, true)
	if err := c.Apply(AgentTable, pflag.NewFlagSet("", 0)); len(c.Errors) != 3 || err == nil || !strings.Contains(err.Error(), "a.toml:2: agent.cpus: \"x\" is not a number (2 mistakes more") {
		t.Errorf("three bad files: %v, %v", c.Errors, err)
	}
}

// A user cannot read what is not for them, and root does not believe what others may write.
func TestWhoMayWriteConfiguration(t *testing.T) {
	path := configFile(t, "", nil)
	for _, c := range []struct {
		at     string
		mode   os.FileMode
		refuse bool
	}{{path, 0o640, false}, {path, 0o664, true}, {path, 0o646, true}, {path, 0o644, false}, {filepath.Dir(path), 0o777, true}, {filepath.Dir(path), 0o777 | os.ModeSticky, false}} {
		if err := os.Chmod(c.at, c.mode); err != nil {
			t.Fatal(err)
		}
		errs := ReadConfigFile(path, true).Errors
		if refused := len(errs) == 1 && strings.Contains(errs[0].Error(), "others than root may write "+c.at); refused != (c.refuse && os.Geteuid() == 0) {
			t.Errorf("%s with %v: %v", c.at, c.mode, errs)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 1000, -1); err != nil {
			t.Fatal(err)
		}
		if errs := ReadConfigFile(path, true).Errors; len(errs) != 1 {
			t.Errorf("somebody else's file: %v", errs)
		}
		return
	}
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if errs := ReadConfigFile(path, true).Errors; len(errs) != 1 || !strings.Contains(errs[0].Error(), "permission denied") {
		t.Errorf("an unreadable file: %v", errs)
	}
}

// What is wrong only with all settings known is told with the line that made it so.
func TestConflictsAreTold(t *testing.T) {
	path := configFile(t, "[agent]\nshared = [\"home\"]", nil)
	if errs := ReadConfigFile(path, true).Conflicts(); len(errs) != 1 || errs[0].Error() != path+":2: --shared home: write the whole path of a directory, without .. or a / at its end" {
		t.Errorf("%v", errs)
	}
	if errs := ReadConfigFile("", true).Conflicts(); len(errs) > 0 {
		t.Errorf("without a file: %v", errs)
	}
}

// Every flag that help shows is a key, except what chooses the file or is an action.
func TestEveryFlagIsAKey(t *testing.T) {
	tables := Tables()
	for table, cmd := range map[string]*pflag.FlagSet{
		AgentTable: AgentCommand("", nil).Flags(), ControllerTable: ControllerCommand("", nil).Flags(),
	} {
		cmd.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != configFlag && f.Name != "sweep" && !slices.Contains(keys(tables[table]), f.Name) {
				t.Errorf("--%s is no key of [%s]", f.Name, table)
			}
		})
	}
}

// Whatever a file has in it, it is read to settings or to errors with a line, and a setting
// can be given to its flag.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{
		"", "[agent]\nhost = \"x\"", "agent.host = 'x'", "agent = {host = \"x\", cpus = 1e3}", "[controller]\netcd = [\"a\", \"b,c\"]", "[[agent]]", "\ufeff[a",
		"[agent]\nslice = \"5m\"\n\"mem\\u006fry\" = 0x10\nverbose = true", "[agent]\nhost = \"\"\"\nx\"\"\"", "x = 1979-05-27T07:32:00Z", "[agent.host]\nx = nan", "[agent]\r\nsite = \"\"\r\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, errs := parseConfig("f", data)
		last := strings.Count(string(data), "\n") + 1
		for _, err := range errs {
			line := 0
			if _, e := fmt.Sscanf(err.Error(), "f:%d: ", &line); e != nil || line < 1 || line > last {
				t.Fatalf("%q: %v", data, err)
			}
		}
		tables := Tables()
		for _, s := range settings {
			line := 0
			if _, e := fmt.Sscanf(s.from, "f:%d", &line); e != nil || line < 1 || line > last {
				t.Fatalf("%q: %s.%s is in line %s", data, s.table, s.key, s.from)
			}
			if wrong := s.set(tables); wrong != "" {
				t.Fatalf("%q: %s.%s was right, and is now %s", data, s.table, s.key, wrong)
			}
		}
	})
}
