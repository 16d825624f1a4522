package view

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bytes writes a number of bytes with three digits, in powers of 1024.
func Bytes(n int64) string {
	if n < 0 {
		return "-" + Bytes(-max(n, -math.MaxInt64)) // the least number has no opposite
	}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	f, u := float64(n)/1024, 0
	for f >= 999.5 && u < len(units)-1 {
		f, u = f/1024, u+1
	}
	if f == float64(int64(f)) || f >= 99.95 {
		return fmt.Sprintf("%.0f %s", f, units[u])
	}
	return fmt.Sprintf("%.1f %s", f, units[u])
}

// Rate writes bytes per second.
func Rate(bytesPerSecond float64) string {
	if bytesPerSecond == 0 {
		return "rate not known yet"
	}
	return Bytes(int64(bytesPerSecond)) + "/s"
}

// Took writes a measured duration with useful precision.
func Took(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Took(-max(d, -math.MaxInt64))
	case d == 0:
		return "0 s"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return Age(d)
}

// Age writes roughly how long something has lasted.
func Age(d time.Duration) string {
	d = max(d, 0)
	s := int64(d / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 60*60:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 48*60*60:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
}

// Ago writes how long before now a time was.
func Ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	if d := now.Sub(then); d >= 2*time.Second {
		return Age(d) + " ago"
	}
	return "now"
}

// Count writes a number with its noun.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// List joins identifiers for a sentence.
func List[T ~string](ids []T) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = string(id)
	}
	return strings.Join(words, ", ")
}

// Command writes a program and its arguments in a shell's syntax.
func Command(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = quote(a)
	}
	return Clean(strings.Join(words, " "))
}

func quote(arg string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./=:,+@%", r)
	}
	if arg != "" && strings.IndexFunc(arg, func(r rune) bool { return !plain(r) }) < 0 {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// Clean replaces characters that could control a terminal: a snapshot's texts come from
// other users' jobs and other machines.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// short cuts a text to at most n characters.
func short(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// Compare orders identifiers naturally: j9 before j10.
func Compare(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if len(na) != len(nb) {
				return len(na) - len(nb)
			}
			if c := strings.Compare(na, nb); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

// digits counts the digits at the beginning of s.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
