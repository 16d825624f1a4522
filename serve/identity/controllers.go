package identity

import (
	"path/filepath"

	"pagurus/internal/note"
)

// controllersFile has the addresses of all controllers, beside a member's credentials.
const controllersFile = "controllers.json"

// Controllers are the addresses that SaveControllers kept; none if it did not, or they cannot be read: a
// controller tells them again.
func Controllers(dir string) []string {
	var out []string
	if dir == "" || note.Load(filepath.Join(dir, controllersFile), &out) != nil {
		return nil
	}
	return out
}

// SaveControllers keeps the addresses of all controllers of a member's cluster.
func SaveControllers(dir string, addresses []string) error {
	return note.Replace(filepath.Join(dir, controllersFile), addresses)
}
