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

// Receiver holds the received parts of a guest.
type Receiver struct {
	Memory *memory.Store
	Agent  io.WriteCloser // receives the guest agent; nil: it will not be sent

	images string
	ready  func() error
	tree   *Target
	image  *os.File // the image file being written
}

// NewReceiver receives a guest's files in one folder, which must be empty, and CRIU's
// images in another, in which no file may have an image's name. The source is told that
// everything has been received only after ready has returned. The caller must call Close.
func NewReceiver(files, images string, ready func() error) (*Receiver, error) {
	t, err := NewTarget(files)
	if err != nil {
		return nil, err
	}
	return &Receiver{Memory: memory.NewStore(), images: images, ready: ready, tree: t}, nil
}

// Close frees everything that is not needed once the guest is restored. It may be called
// again.
func (in *Receiver) Close() {
	if in.Agent != nil {
		_ = in.Agent.Close() // it reports an incomplete file
		in.Agent = nil
	}
	in.tree.Close()
	in.Memory.Close()
	if in.image != nil {
		in.image.Close()
	}
}

// Receive receives until the source asks to restore the guest. After an error what was
// received cannot be used.
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
			err = fmt.Errorf("the source sent a message of the unknown kind %q", kind)
		}
		if err != nil {
			return err
		}
	}
}

// agent receives a part of the guest agent.
func (in *Receiver) agent(content []byte) error {
	if in.Agent == nil {
		return errors.New("a guest agent came without a request")
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

// beginImage creates a file for CRIU.
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
		return errors.New("content came before its name")
	}
	_, err := in.image.Write(content)
	return err
}
