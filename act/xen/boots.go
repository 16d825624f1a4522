package xen

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// diskModule is the kernel's part without which a guest of Xen has no disk.
const diskModule = "/xen-blkfront.ko"

// boots says what an image lacks to boot as a guest of Xen.
func boots(folder string) error {
	f, err := os.Open(filepath.Join(folder, "modules.cpio"))
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	defer f.Close()
	for b, kept := make([]byte, 1<<20), 0; ; {
		n, err := io.ReadFull(f, b[kept:])
		if bytes.Contains(b[:kept+n], []byte(diskModule)) {
			return nil
		}
		if err != nil {
			return errors.New("the image has no modules for Xen: it was built by an earlier Pagurus, so build it again with `pagurus image build`")
		}
		kept = copy(b, b[kept+n-len(diskModule):kept+n])
	}
}
