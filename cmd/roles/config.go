// This file reads configuration files. Their schema is the flags of the roles: a table for
// each role, a key for each flag. It knows no flag by name except those that say where the
// controller is. Its tests are tables of files, and a fuzz target.

package roles

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/pflag"

	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// Where a machine's configuration is, and what chooses another file.
const (
	ConfigFile     = "/etc/pagurus/config.toml"
	ConfigVariable = "PAGURUS_CONFIG"
	configFlag     = "config"
	configFolder   = "conf.d" // beside the file; what is in it wins
	configLimit    = 1 << 20  // bytes of one file
)

// NoConfig is the flag of daemons that must not be disturbed by the machine's configuration.
const NoConfig = "--" + configFlag + "="

// The tables of a configuration file.
const (
	AgentTable      = "agent"
	ControllerTable = "controller"
)

// Tables returns the tables of a configuration file with their keys, which are flags. Each
// call returns new ones. Flags that --help hides are not keys.
func Tables() map[string]*pflag.FlagSet {
	var a Agent
	var c Controller
	agent, controller := pflag.NewFlagSet(AgentTable, pflag.ContinueOnError), pflag.NewFlagSet(ControllerTable, pflag.ContinueOnError)
	a.Add(agent)
	cli.Locate(agent)
	c.Add(controller, ":"+defaultPort)
	cli.JudgeSet(agent)
	cli.JudgeSet(controller)
	return map[string]*pflag.FlagSet{AgentTable: agent, ControllerTable: controller}
}

// keys are the keys of a table.
func keys(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// AddConfig defines the flag that chooses the configuration file.
func AddConfig(flags *pflag.FlagSet) {
	flags.String(configFlag, ConfigFile, "configuration file, with "+configFolder+"/*.toml beside it (or "+ConfigVariable+"; empty: none)")
	cli.MayBeEmpty(flags, configFlag)
}

// Config is what configuration files say.
type Config struct {
	settings []setting // those that win are last
	Errors   []error   // every mistake in them
}

// setting is the value of one key in a file.
type setting struct {
	table, key string
	value      any    // as TOML has it
	from       string // FILE:LINE
}

// ConfigPath returns the configuration file that a command line chose (empty: none), and
// whether it must exist.
func ConfigPath(flags *pflag.FlagSet) (path string, must bool) {
	if flags.Changed(configFlag) {
		path, _ = flags.GetString(configFlag)
		return path, true
	}
	if path, is := os.LookupEnv(ConfigVariable); is {
		return path, true
	}
	return ConfigFile, false
}

// ReadConfig reads the configuration that a command line chose, and the files beside it.
func ReadConfig(flags *pflag.FlagSet) Config { return ReadConfigFile(ConfigPath(flags)) }

// ClusterFile returns the path of the file beside a configuration that `pagurus cluster init`
// writes.
func ClusterFile(config string) string {
	return filepath.Join(filepath.Dir(config), configFolder, "10-cluster.toml")
}

// ReadConfigFile reads one file and those beside it. If must is set, a missing file is an
// error. An empty path gives an empty configuration.
func ReadConfigFile(path string, must bool) (c Config) {
	if path == "" {
		return c
	}
	paths, err := ConfigFiles(path, must)
	if err != nil {
		c.Errors = append(c.Errors, err)
	}
	for _, p := range paths {
		data, err := readTrusted(p)
		if err != nil {
			c.Errors = append(c.Errors, err)
			continue
		}
		settings, errs := parseConfig(p, data)
		c.settings, c.Errors = append(c.settings, settings...), append(c.Errors, errs...)
	}
	return c
}

// ConfigFiles are a configuration file and those beside it, in the order in which they are read.
// must: the file is one of them even if it is missing.
func ConfigFiles(path string, must bool) ([]string, error) {
	paths := []string{path}
	if _, err := os.Stat(path); !must && errors.Is(err, fs.ErrNotExist) {
		paths = nil
	}
	folder := filepath.Join(filepath.Dir(path), configFolder)
	entries, err := os.ReadDir(folder) // in the order of their names
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return paths, fmt.Errorf("reading the configuration: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".toml") && !strings.HasPrefix(e.Name(), ".") {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	return paths, nil
}

// readTrusted reads a file. Root refuses one that others may write or replace.
func readTrusted(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not make a daemon wait
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the configuration: there is no file %s: name one that exists, or leave it out; `pagurus config show` says what is in force", path)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading the configuration: %s is not a file", path)
	}
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	for i, at := range []string{path, filepath.Dir(path)} {
		if os.Geteuid() == 0 && !onlyRootWrites([]fs.FileInfo{info, folder}[i]) {
			return nil, fmt.Errorf("the configuration %s is not read, because others than root may write %s: `chown root %s && chmod go-w %s`", path, at, at, at)
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, configLimit+1))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	if len(data) > configLimit {
		return nil, fmt.Errorf("reading the configuration: %s is larger than %s", path, view.Bytes(configLimit))
	}
	return data, nil
}

// onlyRootWrites reports whether a file, or what root has in a folder, is root's alone.
func onlyRootWrites(info fs.FileInfo) bool {
	const others = 0o022
	owner, ok := info.Sys().(*syscall.Stat_t)
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	return ok && owner.Uid == 0 && (info.Mode().Perm()&others == 0 || sticky)
}

// parseConfig reads the text of a file. It gives the settings that are right and an error for
// each that is wrong, both in the order of their lines.
func parseConfig(path string, data []byte) ([]setting, []error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // which some editors write
	var said map[string]any
	if err := toml.Unmarshal(data, &said); err != nil {
		line := 1
		var at *toml.DecodeError
		if errors.As(err, &at) {
			line, _ = at.Position()
		}
		return nil, []error{fmt.Errorf("%s:%d: %s", path, line, view.Clean(strings.TrimPrefix(err.Error(), "toml: ")))}
	}
	lines, tables := keyLines(data), Tables()
	type fault struct {
		line int
		text string
	}
	var faults []fault
	var settings []setting
	for table, below := range said {
		in, is := below.(map[string]any)
		if wrong := wrongTable(table, is, tables); wrong != "" {
			faults = append(faults, fault{lines[[2]string{table}], wrong})
			continue
		}
		for key, value := range in {
			line := cmp.Or(lines[[2]string{table, key}], lines[[2]string{table}])
			s := setting{table, key, value, fmt.Sprintf("%s:%d", path, line)}
			if wrong := s.set(tables); wrong != "" {
				faults = append(faults, fault{line, wrong})
				continue
			}
			settings = append(settings, s)
		}
	}
	slices.SortFunc(faults, func(a, b fault) int { return cmp.Or(a.line-b.line, cmp.Compare(a.text, b.text)) })
	var errs []error
	for _, f := range faults {
		errs = append(errs, fmt.Errorf("%s:%d: %s", path, f.line, view.Clean(f.text)))
	}
	return settings, errs
}

// keyLines gives the lines of tables and keys. The decoder keeps them of errors only.
func keyLines(data []byte) map[[2]string]int {
	lines := map[[2]string]int{}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	line, at := 1, 0
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind != unstable.Table && e.Kind != unstable.ArrayTable && e.Kind != unstable.KeyValue {
			continue
		}
		var path []string
		for it := e.Key(); it.Next(); {
			path = append(path, string(it.Node().Data))
			if next := int(it.Node().Raw.Offset); next > at && next <= len(data) {
				line, at = line+bytes.Count(data[at:next], []byte("\n")), next
			}
		}
		if e.Kind == unstable.KeyValue {
			path = slices.Concat(table, path)
		} else {
			table = path
		}
		for n := 1; n <= min(2, len(path)); n++ {
			var name [2]string
			copy(name[:], path[:n])
			if lines[name] == 0 {
				lines[name] = line
			}
		}
	}
	return lines
}

// wrongTable says what is wrong with what stands at the top of a file; empty: nothing.
func wrongTable(name string, table bool, tables map[string]*pflag.FlagSet) string {
	_, known := tables[name]
	switch {
	case known && table:
		return ""
	case known:
		return fmt.Sprintf("%s is a table: write [%s], and its keys below it", name, name)
	case !table:
		return fmt.Sprintf("%s is in no table: write it below [%s] or [%s]", name, AgentTable, ControllerTable)
	}
	near := cli.Nearest(name, []string{AgentTable, ControllerTable})
	if near == "" {
		return fmt.Sprintf("there is no table [%s], only [%s] and [%s]", name, AgentTable, ControllerTable)
	}
	return fmt.Sprintf("there is no table [%s], did you mean [%s]?", name, near)
}

// set gives a setting to the flag of a table and says what is wrong with it; empty: nothing.
func (s setting) set(tables map[string]*pflag.FlagSet) string {
	f := tables[s.table].Lookup(s.key)
	if f != nil && !f.Hidden {
		if wrong := assign(f, s.value); wrong != "" {
			return fmt.Sprintf("%s.%s: %s", s.table, s.key, wrong)
		}
		return ""
	}
	wrong := fmt.Sprintf("there is no key %s.%s", s.table, s.key)
	if near := cli.Nearest(s.key, keys(tables[s.table])); near != "" {
		return fmt.Sprintf("%s, did you mean %s.%s?", wrong, s.table, near)
	}
	for _, other := range []string{AgentTable, ControllerTable} {
		if slices.Contains(keys(tables[other]), s.key) {
			return fmt.Sprintf("%s, but [%s] has one", wrong, other)
		}
	}
	return wrong
}

// assign sets a flag to a value of a file and says why it cannot; empty: it could. The flag
// does not count as given on the command line.
func assign(f *pflag.Flag, value any) string {
	list, takesList := f.Value.(pflag.SliceValue)
	var text string
	switch v := value.(type) {
	case []any:
		if !takesList {
			return "takes one value, not a list"
		}
		var words []string
		for _, one := range v {
			word, is := one.(string)
			if !is {
				return "takes a list of texts: write each in quotes"
			}
			words = append(words, word)
		}
		if err := list.Replace(words); err != nil {
			return err.Error()
		}
		return ""
	case string:
		text = v
	case bool:
		text = strconv.FormatBool(v)
	case int64:
		text = strconv.FormatInt(v, 10)
	case float64:
		text = strconv.FormatFloat(v, 'g', -1, 64)
	case map[string]any:
		return "takes a value, not a table"
	default:
		return "takes no date or time"
	}
	if _, quoted := value.(string); !quoted && (takesList || f.Value.Type() == "string") {
		return fmt.Sprintf("takes text: write it in quotes, as %q", text)
	}
	if err := f.Value.Set(text); err != nil {
		return cli.WrongValue(f, text, err)
	}
	return ""
}

// Conflicts returns the mistakes that show only when all settings are known.
func (c Config) Conflicts() []error {
	var a Agent
	flags := pflag.NewFlagSet(AgentTable, pflag.ContinueOnError)
	a.Add(flags)
	err := c.Apply(AgentTable, flags)
	if err == nil {
		err = Blame(flags, a.Finish())
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

// fromKey annotates a flag with the file and line that set it.
const fromKey = "pagurus_from"

// variables are those of the environment that count more than a file.
var variables = map[string]string{"controller": wire.ControllerVariable, "credentials": wire.CredentialsVariable}

// Apply sets flags to what a table says, except those that were given on the command line or
// in the environment. Its error is the first mistake in any table.
func (c Config) Apply(table string, flags *pflag.FlagSet) error {
	if len(c.Errors) == 1 {
		return c.Errors[0]
	}
	if len(c.Errors) > 1 {
		return fmt.Errorf("%w (%s more: `pagurus config check` says all)", c.Errors[0], view.Count(len(c.Errors)-1, "mistake"))
	}
	last := map[string]setting{}
	for _, s := range c.settings {
		if s.table == table {
			last[s.key] = s
		}
	}
	for key, s := range last {
		f := flags.Lookup(key)
		if f == nil || f.Changed || os.Getenv(variables[key]) != "" {
			continue
		}
		if wrong := assign(f, s.value); wrong != "" {
			return fmt.Errorf("%s: %s.%s: %s", s.from, s.table, s.key, wrong)
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[fromKey] = []string{s.from}
	}
	return nil
}

// Source says where the value of a table's flag comes from: "flag", "environment VARIABLE",
// FILE:LINE or "default".
func Source(f *pflag.Flag) string {
	switch {
	case f.Changed:
		return "flag"
	case os.Getenv(variables[f.Name]) != "":
		return "environment " + variables[f.Name]
	case len(f.Annotations[fromKey]) > 0:
		return f.Annotations[fromKey][0]
	}
	return "default"
}

// Value returns the value of a table's flag, or the environment's if that counts.
func Value(f *pflag.Flag) string {
	if set := os.Getenv(variables[f.Name]); set != "" && !f.Changed {
		return set
	}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return strings.Join(list.GetSlice(), ",")
	}
	return f.Value.String()
}

// configure completes the flags of one role from the configuration that they choose.
func configure(flags *pflag.FlagSet, table string) error {
	return ReadConfig(flags).Apply(table, flags)
}

// Chosen reports whether somebody chose a flag's value, on the command line or in a file.
func Chosen(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f != nil && (f.Changed || len(f.Annotations[fromKey]) > 0)
}

// Blame puts the file and line that set a flag before an error about the flag. If no file set
// it, the error stays as it is.
func Blame(flags *pflag.FlagSet, err error) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), " ")
	if f := flags.Lookup(name); f != nil && len(f.Annotations[fromKey]) > 0 {
		return fmt.Errorf("%s: %w", f.Annotations[fromKey][0], err)
	}
	return err
}
