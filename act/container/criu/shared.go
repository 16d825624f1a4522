package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of CRIU's images, as regfile.proto and fdinfo.proto number them.
const (
	fileRegular = 3 // of an entry of files.img

	regularMount     = 7
	regularSize      = 8
	regularExternal  = 9
	regularMode      = 10
	regularBuild     = 11
	regularChecksum  = 12
	regularCheckedBy = 13
	regularPeriod    = 14
)

// Trust removes from a dump's images the sizes, modes and checksums of the files mounted at
// folders, so that CRIU does not check them. The target has the very same files, and other users
// of these files may change them while the container is suspended. All other files are copies,
// and CRIU checks them as usual. pid is the container's first process.
func Trust(images string, pid int, folders []JobFolder) error {
	if len(folders) == 0 {
		return nil
	}
	var mounts []uint64
	var err error
	for _, f := range folders {
		at, failed := mountsAt(pid, f.At)
		mounts, err = append(mounts, at...), errors.Join(err, failed)
	}
	if err == nil {
		err = rewrite(filepath.Join(images, "files.img"), func(entry []byte) ([]byte, error) { return trusting(entry, mounts) })
	}
	if err != nil {
		return fmt.Errorf("remove from the images what others may change of the job's files: %w", err)
	}
	return nil
}

// mountsAt returns the identifiers of the mounts at a folder in any process of a
// container.
func mountsAt(pid int, at string) ([]uint64, error) {
	all, err := Processes(pid)
	if err != nil {
		return nil, err
	}
	var found []uint64
	for _, p := range all {
		for id, where := range mountTable(p) {
			if where == filepath.Clean(at) && !slices.Contains(found, id) {
				found = append(found, id)
			}
		}
	}
	return found, nil
}

// unescape decodes a path of /proc/PID/mountinfo.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// imageHeader is the length, in bytes, of the two numbers at the beginning of an image.
const imageHeader = 8

// rewrite changes the entries of an image.
func rewrite(name string, change func([]byte) ([]byte, error)) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if len(text) < imageHeader {
		return fmt.Errorf("%s is not an image", filepath.Base(name))
	}
	out, rest := text[:imageHeader:imageHeader], text[imageHeader:]
	for len(rest) > 0 {
		size := uint64(0)
		if len(rest) >= 4 {
			size = uint64(binary.LittleEndian.Uint32(rest)) + 4
		}
		if size == 0 || size > uint64(len(rest)) {
			return fmt.Errorf("%s ends within an entry", filepath.Base(name))
		}
		entry, err := change(rest[4:size])
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(entry))), entry...)
		rest = rest[size:]
	}
	return os.WriteFile(name, out, 0o600)
}

// trusting returns an entry of files.img. For a file on one of these mounts it removes
// the fields that CRIU compares.
func trusting(entry []byte, mounts []uint64) ([]byte, error) {
	var out []byte
	err := fields(entry, func(number protowire.Number, whole, content []byte) error {
		if number != fileRegular {
			out = append(out, whole...)
			return nil
		}
		on, kept := false, []byte(nil)
		err := fields(content, func(number protowire.Number, whole, content []byte) error {
			switch number {
			case regularMount:
				id, n := protowire.ConsumeVarint(content)
				on = on || n > 0 && slices.Contains(mounts, uint64(protowire.DecodeZigZag(id)))
			case regularExternal:
				on = true // written by Leave
			case regularSize, regularMode, regularBuild, regularChecksum, regularCheckedBy, regularPeriod:
				return nil
			}
			kept = append(kept, whole...)
			return nil
		})
		if !on {
			kept = content
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), kept)
		return err
	})
	return out, err
}

// fields calls each for every field of a message: with all its bytes, and with those
// after its number (and length, if it has one).
func fields(message []byte, each func(number protowire.Number, whole, content []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		m := protowire.ConsumeFieldValue(number, kind, message[n:])
		if m < 0 {
			return protowire.ParseError(m)
		}
		content := message[n : n+m]
		if kind == protowire.BytesType {
			content, _ = protowire.ConsumeBytes(content)
		}
		if err := each(number, message[:n+m], content); err != nil {
			return err
		}
		message = message[n+m:]
	}
	return nil
}
