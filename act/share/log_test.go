package share

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

func TestLogIsBounded(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	size := func() int64 {
		found, err := os.Stat(s.file("room/ganesha.log"))
		if err != nil {
			t.Fatal(err)
		}
		return found.Size()
	}
	// A guest's broken requests are not logged, with or without an agent.
	s.shares.Close()
	before := size()
	err := s.guest.Do(func() error {
		for range 500 {
			c, err := net.Dial("tcp", net.JoinHostPort(n.Subnet.ShareAddr().String(), "2049"))
			if err != nil {
				return err
			}
			c.Write(append([]byte{0x80, 0, 0, 60}, bytes.Repeat([]byte{7}, 60)...))
			c.Close()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, folder+"/input", "", user, 0o644)
	if out := s.guest.Run("nfs-ls", url(n, folder, user)); !strings.Contains(out, "input") {
		t.Errorf("after the broken requests: %s", out)
	}
	if grown := size() - before; grown > 10_000 {
		t.Errorf("500 broken requests made %d bytes of log", grown)
	}
	// Other causes of log output.
	s.open()
	s.apply(n)
	log, err := os.OpenFile(s.file("room/ganesha.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	log.Write(bytes.Repeat([]byte("talk\n"), logLimit/4))
	testkit.Until(t, startLimit, "the log is emptied", func() bool { return size() < logLimit/2 })
	log.Write([]byte("more\n"))
	if text, _ := os.ReadFile(s.file("room/ganesha.log")); bytes.IndexByte(text, 0) >= 0 || len(text) > logLimit/2 {
		t.Errorf("it goes on at byte %d", bytes.Index(text, []byte("more")))
	}
}
