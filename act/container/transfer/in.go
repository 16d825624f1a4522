package transfer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"pagurus/act/container/framing"
	"pagurus/act/container/memory"
)

// Receiver is what has come of a guest.
type Receiver struct {
	Memory *memory.Store
	Agent  io.WriteCloser // takes the guest agent; nil: it is not to come

	images string
	ready  func() error
	tree   *Target
	image  *os.File // that content is of
}

// NewReceiver takes a guest's files in one folder, which is empty, and CRIU's in another,
// in which nothing has the name of one. The source is not told that all has come before
// ready returns. Close it.
func NewReceiver(files, images string, ready func() error) (*Receiver, error) {
	t, err := NewTarget(files)
	if err != nil {
		return nil, err
	}
	return &Receiver{Memory: memory.NewStore(), images: images, ready: ready, tree: t}, nil
}

// Close gives back what is not needed once the guest is made. It may be called
// again.
func (in *Receiver) Close() {
	if in.Agent != nil {
		_ = in.Agent.Close() // says that it is not whole, if so
		in.Agent = nil
	}
	in.tree.Close()
	in.Memory.Close()
	if in.image != nil {
		in.image.Close()
	}
}

// Receive takes what comes until the source asks for the guest to be made. After an
// error what has come is of no use.
func (in *Receiver) Receive(c *framing.Conn) error {
	for {
		kind, content, err := c.Receive(0)
		if err != nil {
			return err
		}
		if in.Agent != nil && kind != sayAgent {
			return errors.New("something came before the guest agent had come whole")
		}
		switch kind {
		case sayAgent:
			err = in.agent(content)
		case sayTree:
			err = in.tree.Apply(content)
		case sayPiece:
			err = in.piece(content)
		case sayImage:
			err = in.beginImage(string(content))
		case sayContent:
			err = in.fill(content)
		case saySync:
			if err = in.ready(); err == nil {
				err = Reply(c, Answer{})
			}
		case sayRestore:
			return nil
		default:
			err = fmt.Errorf("the source says something of the unknown kind %q", kind)
		}
		if err != nil {
			return err
		}
	}
}

// agent takes a part of the guest agent.
func (in *Receiver) agent(content []byte) error {
	if in.Agent == nil {
		return errors.New("a guest agent came that nobody has asked for")
	}
	if len(content) > 0 {
		_, err := in.Agent.Write(content)
		return err
	}
	whole := in.Agent
	in.Agent = nil
	return whole.Close()
}

func (in *Receiver) piece(content []byte) error {
	p, memory, err := parsePiece(content)
	if err != nil {
		return err
	}
	return in.Memory.Put(p, memory)
}

// beginImage makes a file for CRIU.
func (in *Receiver) beginImage(name string) (err error) {
	if err := imageName(name); err != nil {
		return err
	}
	if in.image != nil {
		if err := in.image.Close(); err != nil {
			return err
		}
	}
	in.image, err = os.OpenFile(filepath.Join(in.images, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	return err
}

func (in *Receiver) fill(content []byte) error {
	if in.image == nil {
		return errors.New("content came before the name of what it is of")
	}
	_, err := in.image.Write(content)
	return err
}
