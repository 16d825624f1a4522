package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the man pages of all commands, for packagers.
func manCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "man FOLDER",
		Short:   "Write the man pages into a folder",
		Example: "  pagurus man dist/man",
		Hidden:  true,
		Args:    Exactly(1, "the folder to write to"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.Mkdir(args[0], 0o755); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("there is no folder %s to make %s in: make it, or name another", filepath.Dir(args[0]), filepath.Base(args[0]))
			} else if err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("making the folder for man pages: %w", err)
			}
			// A fixed date, so that the same source gives the same pages.
			date := time.Unix(0, 0).UTC()
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Pagurus " + root.Version, Manual: "Pagurus", Date: &date}, args[0])
		},
	}
}
