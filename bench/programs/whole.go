package programs

import (
	"maps"

	"pagurus/bench"
	"pagurus/bench/stats"
)

// Whole returns a program whose only figure is its whole duration, from its start on a rank to
// its end there. The program's own figures cover only a part of it, or are the best of several
// tries: a moving guest is mostly suspended outside of them. The program's output must still be
// right.
func Whole(p bench.Program) bench.Program {
	read, to := p.Read, ""
	if p.Output != "" {
		to = " >>" + quoted(p.Output)
	}
	p.Command = "sh -c " + quoted(timed(p.Command, to))
	p.Figures = []bench.Figure{{Name: "whole_s", Says: "time of all of " + p.Name, Unit: "s", Sense: stats.Slower}}
	p.Read = func(text string) (bench.Result, error) {
		got, err := read(text)
		if err != nil {
			return got, err
		}
		ns, err := Named(text, tookMark)
		got.Figures = maps.Clone(got.Figures)
		got.Figures["whole_s"] = ns / 1e9
		return got, err
	}
	return p
}

// timed returns a shell command that also prints its duration.
func timed(command, to string) string {
	return `begun=$(date +%s%N); ` + command + `; code=$?; echo ` + tookMark + ` $(($(date +%s%N)-begun))` + to + `; exit $code`
}
