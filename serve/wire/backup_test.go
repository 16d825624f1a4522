package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"pagurus/serve/identity"
)

func (s *served) makeBackup(ctx context.Context, begin func() io.Writer) error {
	return s.backup(ctx, begin)
}

// A backup is for administrators on the controller's machine. What fails before it is begun is
// said; afterwards it is cut off.
func TestBackupStaysOnTheMachine(t *testing.T) {
	s := serve(t, &world{})
	s.backup = func(_ context.Context, begin func() io.Writer) error {
		_, err := io.WriteString(begin(), "archive")
		return err
	}
	got, err := s.client(t).Backup(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if all, err := io.ReadAll(got); err != nil || string(all) != "archive" {
		t.Errorf("got %q, %v", all, err)
	}
	if _, err := s.userClient(t, 1234).Backup(limited(t)); status(t, err) != http.StatusForbidden || !strings.Contains(err.Error(), "only an administrator") {
		t.Errorf("a user: %v", err)
	}
	far := s.member(t, identity.Subject{Role: identity.User, Name: "admin"})
	if _, err := far.Backup(limited(t)); status(t, err) != http.StatusForbidden || !strings.Contains(err.Error(), "the controller's own machine") {
		t.Errorf("an administrator from elsewhere: %v", err)
	}
	s.backup = func(context.Context, func() io.Writer) error { return errors.New("the disk is full") }
	if _, err := s.client(t).Backup(limited(t)); err == nil || err.Error() != "the disk is full" {
		t.Errorf("it could not begin: %v", err)
	}
}
