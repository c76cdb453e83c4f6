package sakia

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ReadFile returns the contents of a file, as [os.ReadFile].
func ReadFile(name string) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Files of the kernel have no length until they are read.
	size := 512
	if info, err := f.Stat(); err == nil && info.Size() < int64(^uint(0)>>1) {
		size = max(size, int(info.Size())+1)
	}
	data := make([]byte, 0, size)
	for {
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return data, err
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

// WriteFile makes data the contents of a file, as [os.WriteFile].
func WriteFile(name string, data []byte, perm fs.FileMode) error {
	f, err := OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// An FS is the tree below a directory, as that of [os.DirFS]: it follows symbolic links, also out of it.
type FS string

var (
	_ fs.ReadFileFS = FS("")
	_ fs.ReadDirFS  = FS("")
	_ fs.StatFS     = FS("")
)

// DirFS returns the tree below a directory.
func DirFS(dir string) FS { return FS(dir) }

// Open opens a file for reading.
func (dir FS) Open(name string) (fs.File, error) {
	path, err := dir.path("open", name)
	if err != nil {
		return nil, err
	}
	f, err := Open(path)
	if err != nil {
		return nil, named(err, name)
	}
	return f, nil
}

// ReadFile returns the contents of a file.
func (dir FS) ReadFile(name string) ([]byte, error) {
	path, err := dir.path("readfile", name)
	if err != nil {
		return nil, err
	}
	data, err := ReadFile(path)
	return data, named(err, name)
}

// ReadDir returns the entries of a directory, sorted by name.
func (dir FS) ReadDir(name string) ([]fs.DirEntry, error) {
	path, err := dir.path("readdir", name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	return entries, named(err, name)
}

// Stat returns the attributes of a file.
func (dir FS) Stat(name string) (fs.FileInfo, error) {
	path, err := dir.path("stat", name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, named(err, name)
	}
	return info, nil
}

func (dir FS) path(op, name string) (string, error) {
	if dir == "" {
		return "", &fs.PathError{Op: op, Path: name, Err: errors.New("sakia: FS with an empty directory")}
	}
	local, err := filepath.Localize(name)
	if err != nil {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return string(dir) + "/" + local, nil
}

// named returns the error with the name that the caller knows.
func named(err error, name string) error {
	var failure *fs.PathError
	if errors.As(err, &failure) {
		return &fs.PathError{Op: failure.Op, Path: name, Err: failure.Err}
	}
	return err
}
