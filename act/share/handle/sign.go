package handle

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// signatureBytes is the length of a signature. Handles of file systems are short, and NFS servers have
// little room for more. Who guesses has to ask the server each time.
const signatureBytes = 8

// KeyBytes is the length of a key.
const KeyBytes = 32

// KeyFor is a job's own key. A handle of another job is not signed with it.
func KeyFor(secret []byte, job string) []byte {
	sum := hmac.New(sha256.New, secret)
	sum.Write([]byte("file handles of job " + job))
	return sum.Sum(nil)
}

// errForged says that a handle was not given out by this guard.
var errForged = errors.New("the handle is not signed")

// signature signs a handle. where names the place that it is of: the same bytes name another file in another
// file system, and what is served at one place to be read only may be written at another.
func signature(key []byte, where string, kind int32, bytes []byte) []byte {
	sum := hmac.New(sha256.New, key)
	sum.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(where))))
	sum.Write([]byte(where))
	sum.Write(binary.LittleEndian.AppendUint32(nil, uint32(kind)))
	sum.Write(bytes)
	return sum.Sum(nil)[:signatureBytes]
}

// sign is the handle that is given out for one of the kernel's.
func sign(key []byte, where string, h unix.FileHandle) []byte {
	return append(append([]byte{}, h.Bytes()...), signature(key, where, h.Type(), h.Bytes())...)
}

// unsign is the kernel's handle for one that was given out.
func unsign(key []byte, where string, kind int32, bytes []byte) (unix.FileHandle, error) {
	n := len(bytes) - signatureBytes
	if n <= 0 || !hmac.Equal(bytes[n:], signature(key, where, kind, bytes[:n])) {
		return unix.FileHandle{}, errForged
	}
	return unix.NewFileHandle(kind, bytes[:n]), nil
}
