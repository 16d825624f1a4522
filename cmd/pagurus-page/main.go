// Pagurus-page draws a record of measurements as a page of HTML. `pagurus bench`
// calls it. It is a program of its own because what draws plots takes 6 MiB as soon
// as a program that has it begins, and agents are to be small.
package main

import (
	"fmt"
	"os"

	"pagurus/measure/bench"
	"pagurus/measure/bench/page"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pagurus-page RECORD >PAGE; `pagurus bench` calls it")
		os.Exit(2)
	}
	if err := draw(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-page:", err)
		os.Exit(1)
	}
}

func draw(record string) error {
	r, err := bench.Load(record)
	if err != nil {
		return err
	}
	drawn, err := page.Draw(r, r.Summarise())
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(drawn)
	return err
}
