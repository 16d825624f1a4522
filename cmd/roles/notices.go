package roles

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"pagurus/fleet"
	"pagurus/serve/notices"
	"pagurus/show/cli"
)

// Flags of who is told what happens.
const (
	WebhookFlag       = "webhook"
	WebhookSecretFlag = "webhook-secret"
	MailFlag          = "mail"
	MailFromFlag      = "mail-from"
	MailServerFlag    = "mail-server"
	NoticesFlag       = "notices"
)

// Notices says who is told what happens.
type Notices struct {
	Webhooks []string
	Secret   string // file
	Mail     []string
	From     string
	Server   string
	Kinds    []string
}

// add defines the flags.
func (n *Notices) add(flags *pflag.FlagSet) {
	flags.StringSliceVar(&n.Webhooks, WebhookFlag, nil, "addresses of HTTP that are told when a job has ended, a host is lost or a move is stalled, as Standard Webhooks does")
	flags.StringVar(&n.Secret, WebhookSecretFlag, "", "file, of mode 0600, with the secret by which these requests are signed")
	flags.StringSliceVar(&n.Mail, MailFlag, nil, "addresses of mail that are told the same")
	flags.StringVar(&n.From, MailFromFlag, "", "sender of that mail (default: pagurus at this machine's name)")
	flags.StringVar(&n.Server, MailServerFlag, "127.0.0.1:25", "mail server, ADDRESS:PORT, which takes mail of this machine without a password")
	flags.StringSliceVar(&n.Kinds, NoticesFlag, fleet.NoticeKinds, "what webhooks and mail tell")
	each := func(name string, check func(string) error) {
		cli.Judge(flags, name, func(s string) error {
			for one := range strings.SplitSeq(s, ",") {
				if err := check(one); err != nil && (one != "" || name == NoticesFlag) {
					return err
				}
			}
			return nil
		})
	}
	each(WebhookFlag, notices.RefusedURL)
	each(MailFlag, notices.RefusedMail)
	each(NoticesFlag, func(k string) error {
		if !slices.Contains(fleet.NoticeKinds, k) {
			return fmt.Errorf("there is no notice %q: write %s", k, fleet.Enumerate(fleet.NoticeKinds, "or"))
		}
		return nil
	})
	cli.Judge(flags, MailFromFlag, notices.RefusedMail)
	cli.Judge(flags, MailServerFlag, func(s string) error {
		if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" {
			return fmt.Errorf("%q is not a mail server: write it like 127.0.0.1:25", s)
		}
		return nil
	})
	cli.MayBeEmpty(flags, WebhookFlag, WebhookSecretFlag, MailFlag)
}

// Receivers makes who is told.
func (n Notices) Receivers() (out []notices.Receiver, err error) {
	var key []byte
	if n.Secret != "" {
		if key, err = readSecret(n.Secret); err != nil {
			return nil, err
		}
	}
	for _, at := range n.Webhooks {
		w, err := notices.NewWebhook(at, key)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	from := n.From
	if from == "" && len(n.Mail) > 0 {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("naming the sender of mail: %w; give --%s", err, MailFromFlag)
		}
		from = "pagurus@" + name
	}
	for _, to := range n.Mail {
		out = append(out, notices.Mail{Server: n.Server, From: from, To: to})
	}
	return out, nil
}

// readSecret reads a file that only its owner may read.
func readSecret(file string) ([]byte, error) {
	about, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("reading the secret of webhooks: %w", err)
	}
	if about.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others may read the secret of webhooks: `chmod 600 %s`", file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the secret of webhooks: %w", err)
	}
	return notices.ReadKey(string(text))
}
