// Pagurus-page draws a record of measurements as a page of HTML, with what noise was
// found where that lies beside it. `pagurus bench` calls it. It is a program of its own
// because what draws plots takes 6 MiB as soon as a program that has it begins, and
// agents are to be small.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"pagurus/bench"
	"pagurus/bench/noise"
	"pagurus/bench/report"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pagurus-page RECORD >PAGE; `pagurus bench` calls it")
		os.Exit(2)
	}
	if err := draw(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pagurus-page:", err)
		os.Exit(1)
	}
}

func draw(to io.Writer, record string) error {
	r, err := bench.Load(record)
	if err != nil {
		return err
	}
	found, err := noise.Load(filepath.Join(filepath.Dir(record), noise.FoundName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	drawn, err := report.Draw(r, r.Summarise(), found)
	if err != nil {
		return err
	}
	_, err = to.Write(drawn)
	return err
}
