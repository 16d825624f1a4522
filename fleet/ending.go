package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// How long a cancelled job's program has to end by itself.
const (
	// UsualGrace is the default. It costs nothing if the program ends when told. Ten
	// seconds let a program save its state, and are usual in other systems, too.
	UsualGrace = 10 * time.Second
	// MostGrace is the limit. Writing a large guest's memory over an office network takes
	// less.
	MostGrace = time.Hour
)

// Ending is the grace of a job whose program was told to end.
type Ending struct {
	At    time.Time     `json:"at"` // when it was first told, controller's clock
	Grace time.Duration `json:"grace_ns"`
	Cause string        `json:"cause"`
}

// Signal is for a job's ranks, or for its program if it has no ranks.
type Signal struct {
	ID     string        `json:"id"` // a repeated ID is sent once
	Number int           `json:"number"`
	Ends   bool          `json:"ends,omitempty"` // kill the program if it still runs after Grace
	Grace  time.Duration `json:"grace_ns,omitempty"`
}

// Terminate is the signal that tells a program to end.
const Terminate = 15

// The signals of Linux by their names in kill(1).
var signals = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
	"SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": Terminate, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19,
	"TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28,
	"IO": 29, "PWR": 30, "SYS": 31,
}

const (
	sigKill, sigStop   = 9, 19
	firstReal          = 34 // the two before it belong to the C library
	lastReal           = 64
	realName, lastName = "RTMIN", "RTMAX"
)

// SignalNames lists the signals that a job can be sent, in order.
func SignalNames() []string {
	names := slices.SortedFunc(maps.Keys(signals), func(a, b string) int { return signals[a] - signals[b] })
	return slices.DeleteFunc(names, func(n string) bool { return signals[n] == sigKill || signals[n] == sigStop })
}

// SignalName is the name of a signal, without SIG.
func SignalName(number int) string {
	for name, n := range signals {
		if n == number {
			return name
		}
	}
	if number == firstReal {
		return realName
	}
	return fmt.Sprintf("%s+%d", realName, number-firstReal)
}

// ReadSignal parses a signal's name, with or without SIG, or its number. The error says
// what to do instead.
func ReadSignal(text string) (number int, err error) {
	name := strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(text)), "SIG")
	number, known := signals[name]
	if !known {
		number, known = realSignal(name)
	}
	if n, err := strconv.Atoi(text); err == nil {
		number, known = n, n >= 1 && n <= 31 || n >= firstReal && n <= lastReal
	}
	switch {
	case !known:
		return 0, fmt.Errorf("there is no signal %q; name one as kill -l does, USR1 or SIGUSR1, or give its number", text)
	case number == sigKill:
		return 0, errors.New("SIGKILL cannot be sent to a job's program alone; `pagurus cancel --grace 0s` ends the job at once")
	case number == sigStop:
		return 0, errors.New("SIGSTOP cannot be sent to a job's program; send TSTP, which it can heed, and CONT to let it go on")
	}
	return number, nil
}

// realSignal parses RTMIN+3 and RTMAX-2.
func realSignal(name string) (int, bool) {
	for base, at := range map[string]int{realName: firstReal, lastName: lastReal} {
		rest, ok := strings.CutPrefix(name, base)
		if !ok {
			continue
		}
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				return 0, false
			}
		}
		return at + n, at+n >= firstReal && at+n <= lastReal
	}
	return 0, false
}
