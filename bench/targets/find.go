package targets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// labRun is the folder in which a lab's hosts keep their state.
const labRun = "/run/pagurus/lab"

// Container is a guest of the lab, found without Pagurus.
type Container struct {
	Host    string `json:"-"`
	Process struct {
		PID int `json:"pid"`
	} `json:"process"`
	Image string `json:"image"` // where it is mounted
}

// Find finds a guest's container on one of the lab's hosts.
func Find(guest string) (Container, error) { return find(labRun, guest) }

func find(run, guest string) (c Container, err error) {
	files, err := filepath.Glob(filepath.Join(run, "*", "containers", guest, "guest.json"))
	if err != nil || len(files) != 1 {
		return c, fmt.Errorf("guest %s is a container on %d hosts", guest, len(files))
	}
	text, err := os.ReadFile(files[0])
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && (c.Process.PID <= 1 || c.Image == "") {
		err = fmt.Errorf("it names process %d and image %q", c.Process.PID, c.Image)
	}
	if err != nil {
		return c, fmt.Errorf("reading %s: %w", files[0], err)
	}
	below, _ := strings.CutPrefix(files[0], run+"/")
	c.Host, _, _ = strings.Cut(below, "/")
	return c, nil
}
