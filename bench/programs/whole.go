package programs

import (
	"maps"

	"pagurus/bench"
	"pagurus/bench/stats"
)

// Whole is a program of which nothing but the time of all of it counts, from its start on a
// rank to its end there. What programs measure of themselves is a part of that, or the best
// of several tries: a guest that is moved mostly is suspended outside of it. What the
// program says has to be right all the same.
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

// timed is a command for a shell that says how long it took.
func timed(command, to string) string {
	return `begun=$(date +%s%N); ` + command + `; code=$?; echo ` + tookMark + ` $(($(date +%s%N)-begun))` + to + `; exit $code`
}
