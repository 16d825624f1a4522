package cli

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// advice says what to do about an error of the system, which says itself only what happened.
// It is added where all programs print their errors, since any of them may meet any of these.
func advice(err error) string {
	at, opened := (*fs.PathError)(nil), false
	if opened = errors.As(err, &at); !opened {
		opened = errors.As(err, new(*os.LinkError))
	}
	listening := (*net.OpError)(nil)
	switch {
	case opened && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		return ": free some space there, `df` shows it, and try again"
	case opened && errors.Is(err, syscall.EROFS):
		return ": nothing can be written there, choose another folder"
	case opened && errors.Is(err, syscall.ENOTDIR):
		return ": a file is where a folder has to be, remove it or choose another folder"
	case opened && errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return ": try it with sudo"
	case !errors.As(err, &listening) || listening.Op != "listen":
		return ""
	case errors.Is(err, syscall.EADDRINUSE):
		return ": `ss -tlnp` says by what; end that, or choose another port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return ": `ip -brief address` lists this machine's"
	}
	return ""
}
