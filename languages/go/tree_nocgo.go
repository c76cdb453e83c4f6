//go:build !cgo || !linux

package sakia

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CopyTree copies a tree, one entry after the other. The destination is the copy itself, not a directory for
// it. Failures of entries do not end the copy; they are in a [*TreeError]. Options other than Threads and
// Limit need libsakia, and are [errors.ErrUnsupported] without it.
func CopyTree(ctx context.Context, from, to string, options TreeOptions) (TreeCounts, error) {
	failed := &TreeError{Op: "copy", From: from, To: to}
	options.Threads, options.Limit = 0, 0
	if options != (TreeOptions{}) {
		failed.Err = errors.ErrUnsupported
		return TreeCounts{}, failed
	}
	var counts TreeCounts
	// Directories get their permissions at the end: they may forbid to write.
	modes := map[string]fs.FileMode{}
	walk := func(path string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			var rest string
			if rest, err = filepath.Rel(from, path); err == nil {
				err = copyEntry(path, filepath.Join(to, rest), entry, modes, &counts)
			}
		}
		if err != nil {
			failed.add(err, path, &counts)
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
		}
		return nil
	}
	failed.Err = filepath.WalkDir(from, walk)
	for path, mode := range modes {
		if err := os.Chmod(path, mode); err != nil {
			failed.add(err, path, &counts)
		}
	}
	return counts, failed.orNil()
}

func (e *TreeError) add(err error, path string, counts *TreeCounts) {
	counts.Failures++
	failure := &fs.PathError{Op: "copy", Path: path, Err: err}
	errors.As(err, &failure)
	if len(e.Failures) < failuresKept {
		e.Failures = append(e.Failures, failure)
	}
}

func (e *TreeError) orNil() error {
	if e.Err == nil && len(e.Failures) == 0 {
		return nil
	}
	if e.Err == nil {
		e.Err = syscall.EREMOTEIO
	}
	return e
}

func copyEntry(from, to string, entry fs.DirEntry, modes map[string]fs.FileMode, counts *TreeCounts) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		counts.Directories++
		if err := os.Mkdir(to, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		} else if err == nil {
			modes[to] = info.Mode().Perm()
		}
		return nil
	case info.Mode()&fs.ModeSymlink != 0:
		counts.Symlinks++
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !info.Mode().IsRegular():
		counts.Others++
		return syscall.Mknod(to, info.Sys().(*syscall.Stat_t).Mode, int(info.Sys().(*syscall.Stat_t).Rdev))
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	n, err := io.Copy(target, source)
	counts.Files++
	counts.Bytes += uint64(n)
	return errors.Join(err, target.Close())
}

// RemoveTree removes a tree. Links are not followed.
func RemoveTree(ctx context.Context, path string) (TreeCounts, error) {
	failed := &TreeError{Op: "remove", From: path}
	var counts TreeCounts
	if failed.Err = ctx.Err(); failed.Err != nil {
		return counts, failed
	}
	count := func(_ string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
		case entry.IsDir():
			counts.Directories++
		case entry.Type().IsRegular():
			counts.Files++
		case entry.Type()&fs.ModeSymlink != 0:
			counts.Symlinks++
		default:
			counts.Others++
		}
		return nil
	}
	if _, failed.Err = os.Lstat(path); failed.Err == nil {
		filepath.WalkDir(path, count)
		failed.Err = os.RemoveAll(path)
	}
	if failed.Err != nil {
		failed.add(failed.Err, path, &counts)
	}
	return counts, failed.orNil()
}
