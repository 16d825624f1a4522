package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"pagurus/fleet"
)

// steerWord begins each line from and to programs. Its number is raised when a line means something else.
const steerWord = "pagurus1"

// steerBytes is how long a program's line may be.
const steerBytes = 512

// steerCall is what a program's line says: one of its parts.
type steerCall struct {
	cheap  bool
	gave   bool   // all scratch memory of its process
	bytes  *int64 // of scratch memory that its process has
	notNow *time.Duration
	remark *fleet.Remark
	wish   fleet.Wish
}

// readSteer reads a program's line: a word with the version, a verb, its arguments. libpagurus.c writes it.
func readSteer(line string) (c steerCall, err error) {
	if len(line) > steerBytes || !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return c, fmt.Errorf("a call is a line of text of at most %d bytes", steerBytes)
	}
	version, rest, _ := strings.Cut(line, " ")
	if version != steerWord {
		return c, fmt.Errorf("a call begins with %s", steerWord)
	}
	verb, rest, _ := strings.Cut(rest, " ")
	args := strings.Fields(rest)
	switch verb {
	case "where", "distances", "checkpoint":
		c.wish.Verb = fleet.WishVerb(verb)
		return c, argue(verb, args, 0)
	case "cheap", "gave", "scratch": // "cheap BYTES" of scratch memory, or "cheap": of none
		c.cheap, c.gave = verb == "cheap", verb == "gave"
		if c.cheap && len(args) == 0 {
			return c, nil
		}
		c.bytes, err = readBytes(verb, args)
		return c, err
	case "cost":
		c.wish.Verb = fleet.WishCost
		if err := argue(verb, args, 1); err != nil {
			return c, err
		}
		c.wish.Whole, err = whole(args[0])
		return c, err
	case "move":
		return readMove(args)
	case "grow":
		return readGrow(args)
	case "not-now":
		if err := argue(verb, args, 1); err != nil {
			return c, err
		}
		ms, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return c, errors.New("not-now needs milliseconds")
		}
		d := time.Duration(ms) * time.Millisecond
		c.notNow = &d
		return c, nil
	case "remark":
		level, text, _ := strings.Cut(rest, " ")
		if !slices.Contains(fleet.RemarkLevels, level) || strings.TrimSpace(text) == "" {
			return c, fmt.Errorf("a remark has one of the levels %s, and a text", strings.Join(fleet.RemarkLevels, ", "))
		}
		c.remark = &fleet.Remark{Level: level, Text: fleet.OneLine(text, fleet.RemarkBytes)}
		return c, nil
	}
	return c, fmt.Errorf("this guest's agent does not know the call %q", fleet.OneLine(verb, 32))
}

// readBytes reads the only argument of a verb.
func readBytes(verb string, args []string) (*int64, error) {
	if err := argue(verb, args, 1); err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("%s needs a number of bytes", verb)
	}
	return &n, nil
}

// readMove reads the arguments of a move.
func readMove(args []string) (c steerCall, err error) {
	c.wish.Verb = fleet.WishMove
	if len(args) < 2 {
		return c, errors.New("move needs me or job, and better, away or rank")
	}
	if c.wish.Whole, err = whole(args[0]); err != nil {
		return c, err
	}
	c.wish.Aim = fleet.Aim(args[1])
	if c.wish.Aim != fleet.AimRank {
		err = argue("move", args, 2)
	} else if err = argue("move", args, 3); err == nil {
		c.wish.Rank, err = strconv.Atoi(args[2])
	}
	if err == nil && !c.wish.Sound() {
		err = errors.New("move goes better, away, or to a rank from 0 on")
	}
	return c, err
}

// readGrow reads the arguments of a call for more guests: how many, or for how many ranks, and for how many milliseconds.
func readGrow(args []string) (c steerCall, err error) {
	c.wish.Verb = fleet.WishGrow
	if err := argue("grow", args, 3); err != nil {
		return c, err
	}
	n, err := strconv.ParseUint(args[1], 10, 31)
	ms, wrong := strconv.ParseUint(args[2], 10, 31)
	switch {
	case args[0] == "guests":
		c.wish.Count = int(n)
	case args[0] == "ranks":
		c.wish.Ranks = int(n)
	}
	c.wish.Within = time.Duration(ms) * time.Millisecond
	if err = errors.Join(err, wrong); err != nil || !c.wish.Sound() {
		return c, fmt.Errorf("grow needs guests (1 to %d) or ranks, how many, and up to %d milliseconds", fleet.MostGrowth, fleet.MostGrowthWait.Milliseconds())
	}
	return c, nil
}

func argue(verb string, args []string, want int) error {
	if len(args) != want {
		return fmt.Errorf("%s has %d arguments, not %d", verb, want, len(args))
	}
	return nil
}

// whole reads what a call is about.
func whole(word string) (bool, error) {
	if word != "me" && word != "job" {
		return false, errors.New("a call is about me or job")
	}
	return word == "job", nil
}

// steerReply is an answer's lines, the last of them empty.
func steerReply(a fleet.WishAnswer) []byte {
	a = a.Bounded()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %s\n", steerWord, a.Code, a.Text)
	for _, r := range a.Rows {
		if r != "" {
			b.WriteString(r + "\n")
		}
	}
	b.WriteString("\n")
	return []byte(b.String())
}
