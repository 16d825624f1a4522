package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

// A request is a process's number in its own pid namespace, how many bytes of its
// someMemory are wanted, and where; the answer is these bytes. The number 0 says that
// nothing more is wanted, and has no answer.
const (
	requestBytes  = 4 + 4 + 8
	debtPageBytes = 4096
	// Most is the most that may be asked for at once.
	Most = 4 << 20
)

type request struct {
	process, bytes uint32
	address        uint64
}

func (q request) encode() []byte {
	b := binary.BigEndian.AppendUint32(nil, q.process)
	b = binary.BigEndian.AppendUint32(b, q.bytes)
	return binary.BigEndian.AppendUint64(b, q.address)
}

func parse(b [requestBytes]byte) request {
	return request{binary.BigEndian.Uint32(b[:]), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])}
}

// check refuses what nobody who means well asks for.
func (q request) check() error {
	if q.bytes == 0 || q.bytes > Most || q.bytes%debtPageBytes != 0 || q.address%debtPageBytes != 0 || q.address > 1<<56 {
		return fmt.Errorf("%d bytes at %#x were asked for, which cannot be", q.bytes, q.address)
	}
	return nil
}

// PageClient asks for what is owed.
type PageClient struct {
	mu   sync.Mutex
	conn net.Conn
}

// joinServer makes one of a connection whose other end Lend has. The file is its own from
// now on.
func joinServer(file *os.File) (*PageClient, error) {
	conn, err := net.FileConn(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("reach the page server: %w", err)
	}
	return &PageClient{conn: conn}, nil
}

// Fetch gets what a process has at an address, in whole pages. It waits for as long as
// the connection lives; after an error nothing more ever comes.
func (c *PageClient) Fetch(process uint32, address uint64, content []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(content) > 0 {
		part := content[:min(len(content), Most)]
		_, err := c.conn.Write(request{process, uint32(len(part)), address}.encode())
		if err == nil {
			_, err = io.ReadFull(c.conn, part)
		}
		if err != nil {
			return fmt.Errorf("fetch lazy pages: %w", err)
		}
		content, address = content[len(part):], address+uint64(len(part))
	}
	return nil
}

// Finish says that nothing more is wanted, and ends the connection.
func (c *PageClient) Finish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.conn.Write(request{}.encode())
	return errors.Join(err, c.conn.Close())
}
