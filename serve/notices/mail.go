package notices

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"net/smtp"
	"net/textproto"
	"strings"
	"time"

	"pagurus/fleet"
)

// Mail is a receiver that is told by mail, through a server that takes mail of this machine without a password.
type Mail struct {
	Server string // HOST:PORT
	From   string
	To     string
}

// RefusedMail says why an address is not one of mail; nil: it is.
func RefusedMail(address string) error {
	a, err := mail.ParseAddress(address)
	if err != nil || a.Address != address {
		return fmt.Errorf("%q is not an address of mail: write it like admin@example.org", address)
	}
	return nil
}

// Name is who gets the mail.
func (m Mail) Name() string { return "mail " + m.To }

// Tell sends a notice.
func (m Mail) Tell(ctx context.Context, n fleet.Notice) (err error) {
	defer func() {
		if said := (*textproto.Error)(nil); errors.As(err, &said) && said.Code >= 500 {
			err = fmt.Errorf("%w (%w)", err, ErrUnwanted)
		}
	}()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.Server)
	if err != nil {
		return fmt.Errorf("calling the mail server %s: %w", m.Server, err)
	}
	defer conn.Close()
	if at, limited := ctx.Deadline(); limited {
		_ = conn.SetDeadline(at) // a connection of TCP has deadlines
	}
	host, _, err := net.SplitHostPort(m.Server)
	if err != nil {
		return fmt.Errorf("calling the mail server: %w", err)
	}
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		return fmt.Errorf("greeting the mail server %s: %w", m.Server, err)
	}
	defer c.Close()
	if encrypts, _ := c.Extension("STARTTLS"); encrypts && !loopback(host) {
		if err := c.StartTLS(&tls.Config{ServerName: host}); err != nil {
			return fmt.Errorf("encrypting mail to %s: %w", m.Server, err)
		}
	}
	if err := m.send(c, n); err != nil {
		return fmt.Errorf("sending mail through %s: %w", m.Server, err)
	}
	return nil
}

// send gives the server one mail.
func (m Mail) send(c *smtp.Client, n fleet.Notice) error {
	if err := c.Mail(m.From); err != nil {
		return err
	}
	if err := c.Rcpt(m.To); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(m.text(n)); err != nil {
		return err
	}
	if err := w.Close(); err != nil { // it is taken
		return err
	}
	_ = c.Quit() // the mail is sent
	return nil
}

// text is the mail. Its Message-ID is the same each time, so that readers' programs show it once.
func (m Mail) text(n fleet.Notice) []byte {
	id := sha256.Sum256([]byte(n.Cluster + "/" + string(n.ID)))
	domain := m.From[strings.LastIndexByte(m.From, '@')+1:]
	var b strings.Builder
	for _, h := range [][2]string{
		{"From", m.From}, {"To", m.To}, {"Subject", mime.QEncoding.Encode("utf-8", plain("Pagurus "+n.Cluster+": "+n.Text))}, {"Date", n.At.Format(time.RFC1123Z)},
		{"Message-ID", "<" + hex.EncodeToString(id[:16]) + "@" + domain + ">"}, {"Auto-Submitted", "auto-generated"}, {"Pagurus-Notice", plain(string(n.ID))},
		{"MIME-Version", "1.0"}, {"Content-Type", "text/plain; charset=utf-8"}, {"Content-Transfer-Encoding", "quoted-printable"},
	} {
		b.WriteString(h[0] + ": " + h[1] + "\r\n")
	}
	b.WriteString("\r\n")
	q := quotedprintable.NewWriter(&b)
	_, _ = fmt.Fprintf(q, "%s\n\ncluster %s\nevent %s\nat %s\n", n.Text, n.Cluster, n.ID, n.At.UTC().Format(time.RFC3339)) // into memory
	_ = q.Close()
	return []byte(b.String())
}

// plain is a text without line breaks, of a length that a header may have.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) > mostSubject {
		s = strings.ToValidUTF8(s[:mostSubject], "") + "…"
	}
	return s
}

const mostSubject = 200
