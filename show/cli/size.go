package cli

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"pagurus/fleet"
	"pagurus/show/view"
)

// quantity is a flag's value that one of the parsers below reads.
type quantity[T comparable] struct {
	value *T
	kind  string // for the help
	parse func(string) (T, error)
	text  func(T) string
	given string // as typed
}

func (q *quantity[T]) Type() string { return q.kind }

func (q *quantity[T]) reads() {} // so that JudgeFlags leaves it alone

func (q *quantity[T]) String() string {
	if q.given != "" {
		return q.given
	}
	var none T
	if q.value == nil || *q.value == none { // package flag asks a zero one for its text
		return "" // help then shows no default
	}
	return q.text(*q.value)
}

func (q *quantity[T]) Set(s string) (err error) {
	v, err := q.parse(s)
	if err == nil {
		*q.value, q.given = v, s
	}
	return err
}

// Size defines a flag for a size in bytes. The default is *value.
func Size(flags *pflag.FlagSet, value *int64, name, usage string) {
	flags.Var(&quantity[int64]{value: value, kind: "size", parse: ParseBytes, text: bytesText}, name, usage)
}

// Rate defines a flag for bytes a second.
func Rate(flags *pflag.FlagSet, value *int64, name, usage string) {
	flags.Var(&quantity[int64]{value: value, kind: "rate", parse: ParseRate, text: bytesText}, name, usage)
}

// Share defines a flag for a share of a whole.
func Share(flags *pflag.FlagSet, value *float64, name, usage string) {
	flags.Var(&quantity[float64]{value: value, kind: "share", parse: ParseShare, text: func(v float64) string { return fmt.Sprintf("%g%%", 100*v) }}, name, usage)
}

// Duration defines a flag for a time span.
func Duration(flags *pflag.FlagSet, value *time.Duration, name, usage string) {
	flags.Var(Span(value), name, usage)
}

// Span is the value of a flag for a time span, also for package flag.
func Span(value *time.Duration) pflag.Value {
	return &quantity[time.Duration]{value: value, kind: "duration", parse: ParseDuration, text: fleet.ShortDuration}
}

// sizeText is a size: a number, a unit, and how people end units.
var sizeText = regexp.MustCompile(`^([0-9.]+)(?:([KMGT])(?:I?B)?|B)?$`)

// ParseBytes reads a size as people write it: 512M, 1.5G, 2GiB, 1048576. The
// units are powers of 1024.
func ParseBytes(s string) (int64, error) {
	bad := fmt.Errorf("%q is not a size: write it like 512M or 1.5G", s)
	part := sizeText.FindStringSubmatch(strings.ToUpper(strings.TrimSpace(s)))
	if part == nil {
		return 0, bad
	}
	unit := math.Pow(1024, float64(strings.Index(" KMGT", part[2])))
	if part[2] == "" {
		unit = 1
	}
	n, err := strconv.ParseFloat(part[1], 64)
	if err != nil || !(n*unit >= 1) || n*unit >= math.MaxInt64 {
		return 0, bad
	}
	return int64(n * unit), nil
}

// ParseRate reads bytes a second: a size, optionally with /s.
func ParseRate(s string) (int64, error) {
	n, err := ParseBytes(strings.TrimSuffix(s, "/s"))
	if err != nil {
		return 0, fmt.Errorf("%q is not a rate: write the bytes for each second like 200M or 1.5G", s)
	}
	return n, nil
}

// ParseShare reads a share as people write it: 50% or 0.5.
func ParseShare(s string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) { // also refuses NaN
		return 0, fmt.Errorf("%q is not a share: write it like 50%% or 0.5", s)
	}
	return v, nil
}

// daysText is a time span that begins with days.
var daysText = regexp.MustCompile(`^([0-9]+)d(.*)$`)

// mostDays keeps a time span within what a time.Duration holds.
const mostDays = 36500

// ParseDuration reads a time span: 30s, 5m, 1h30m, 2d. Negative ones are refused.
func ParseDuration(s string) (time.Duration, error) {
	text, whole := strings.TrimSpace(s), time.Duration(0)
	bad := fmt.Errorf("%q is not a duration: write it like 30s, 5m, 1h30m or 2d", s)
	if part := daysText.FindStringSubmatch(text); part != nil {
		n, err := strconv.Atoi(part[1])
		if err != nil || n > mostDays {
			return 0, bad
		}
		if whole, text = time.Duration(n)*24*time.Hour, part[2]; text == "" {
			return whole, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || whole+d < 0 {
		return 0, bad
	}
	return whole + d, nil
}

// bytesText writes a size for ParseBytes, as short as possible.
func bytesText(n int64) string {
	unit := ""
	for i := 0; i < len("KMGT") && n%1024 == 0; i++ {
		n, unit = n/1024, "KMGT"[i:i+1]
	}
	if i := strings.Index("KMGT", unit) + len(unit); i < len("KMGT") && n > 1024 && n%512 == 0 { // 12.5M, not 12800K
		return fmt.Sprintf("%.1f%c", float64(n)/1024, "KMGT"[i])
	}
	return strconv.FormatInt(n, 10) + unit
}

// badValue says what is wrong with a flag's value, and names the flag as it was typed; empty
// if err is not about that.
func badValue(err error, typed []string) string {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return ""
	}
	f := bad.GetFlag()
	return fmt.Sprintf("%s: %s", asTyped(f, typed), WrongValue(f, bad.GetValue(), bad.Unwrap()))
}

// asTyped names a flag as the first of some arguments does that names it: -n or --ranks.
func asTyped(f *pflag.Flag, typed []string) string {
	for _, arg := range typed {
		long, isLong := strings.CutPrefix(arg, "--")
		name, _, _ := strings.Cut(long, "=")
		short, isShort := strings.CutPrefix(arg, "-")
		switch {
		case isLong && name == f.Name:
			return "--" + f.Name
		case isShort && !isLong && f.Shorthand != "" && strings.HasPrefix(short, f.Shorthand):
			return "-" + f.Shorthand
		}
	}
	return "--" + f.Name
}

// WrongValue says what is wrong with a value that a flag's Set refused because of cause.
func WrongValue(f *pflag.Flag, value string, cause error) string {
	if f.Value.Type() == "bool" {
		return fmt.Sprintf("%q is neither true nor false", value)
	}
	if errors.As(cause, new(*strconv.NumError)) {
		return fmt.Sprintf("%q is not a number", value)
	}
	if _, e := ParseDuration(value); e != nil && f.Value.Type() == "duration" {
		cause = e // also for pflag's own flags
	}
	return view.Clean(cause.Error())
}
