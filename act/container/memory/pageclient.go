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

// A request has a process's number in its own pid namespace, a number of bytes and an
// address. The answer is so many bytes of the process's memory. Number 0 ends the
// requests and has no answer.
const (
	requestBytes    = 4 + 4 + 8
	servedPageBytes = 4096
	// Most is the most that one request may ask for, in bytes.
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

// check refuses a request that no page client sends.
func (q request) check() error {
	if q.bytes == 0 || q.bytes > Most || q.bytes%servedPageBytes != 0 || q.address%servedPageBytes != 0 || q.address > 1<<56 {
		return fmt.Errorf("%d bytes at %#x were asked for, which cannot be", q.bytes, q.address)
	}
	return nil
}

// PageClient fetches lazy pages from a page server.
type PageClient struct {
	mu   sync.Mutex
	conn net.Conn
}

// joinServer makes a PageClient from a connection whose other end ServePages has. It
// takes ownership of the file.
func joinServer(file *os.File) (*PageClient, error) {
	conn, err := net.FileConn(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("reach the page server: %w", err)
	}
	return &PageClient{conn: conn}, nil
}

// Fetch fills content with a process's memory from an address on, in whole pages. It
// waits as long as the connection lives. After an error nothing more ever arrives.
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

// Finish tells the page server that no more pages are needed, and closes the connection.
func (c *PageClient) Finish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.conn.Write(request{}.encode())
	return errors.Join(err, c.conn.Close())
}
