// Package study is the testbench of a study of 2016, which gave Go one scheduler of disk operations in place
// of a pool of blocked threads, by Linux AIO: its blocking scheduler, its AIO one without its faults, and
// beside them os.File and sakia.
package study

import (
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"sakia.invalid/languages/go"
)

// A Scheduler opens files, whose operations it performs.
type Scheduler interface {
	OpenFile(name string, flag int, perm os.FileMode) (File, error)
	// End ends it after the operations under way.
	End() error
	// Trace returns how long calls of the kernel took so far, by name.
	Trace() map[string]Timing
}

// A File is what the study's programs use.
type File interface {
	io.ReadWriteSeeker
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// A Timing is the calls of a kind.
type Timing struct {
	Count int
	Sum   time.Duration
}

// Names are those of all schedulers.
var Names = []string{"blocking", "aio", "os", "sakia"}

// New returns a scheduler by its name.
func New(name string) (Scheduler, error) {
	switch name {
	case "blocking":
		return blocking{}, nil
	case "aio":
		return NewAIO(0)
	case "os":
		return osFiles{}, nil
	case "sakia":
		return sakiaFiles{}, nil
	}
	return nil, fmt.Errorf("no scheduler %q: %v", name, Names)
}

type osFiles struct{}

func (osFiles) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	return os.OpenFile(name, flag, perm)
}
func (osFiles) End() error               { return nil }
func (osFiles) Trace() map[string]Timing { return nil }

type sakiaFiles struct{}

func (sakiaFiles) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	return sakia.OpenFile(name, flag, perm)
}
func (sakiaFiles) End() error               { return nil }
func (sakiaFiles) Trace() map[string]Timing { return nil }

// The study's blocking scheduler: a system call for each operation, which blocks a thread.
type blocking struct{}

func (blocking) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	return open(name, flag, perm, func(fd int, isWrite bool, b []byte, off int64) (int, error) {
		if isWrite {
			return syscall.Pwrite(fd, b, off)
		}
		return syscall.Pread(fd, b, off)
	})
}
func (blocking) End() error               { return nil }
func (blocking) Trace() map[string]Timing { return nil }

// A file of the study's own schedulers, with a position of its own.
type file struct {
	name string
	// One transfer.
	transfer func(fd int, isWrite bool, b []byte, off int64) (int, error)

	mu       sync.RWMutex
	fd       int
	position struct {
		sync.Mutex
		off int64
	}
}

func open(name string, flag int, perm os.FileMode,
	transfer func(fd int, isWrite bool, b []byte, off int64) (int, error)) (*file, error) {
	fd, err := syscall.Open(name, flag|syscall.O_CLOEXEC, uint32(perm))
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return &file{name: name, transfer: transfer, fd: fd}, nil
}

func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd < 0 {
		return &os.PathError{Op: "close", Path: f.name, Err: os.ErrClosed}
	}
	err := syscall.Close(f.fd)
	f.fd = -1
	return err
}

// once transfers once, until something is there to return.
func (f *file) once(op string, isWrite bool, b []byte, off int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.fd < 0 {
		return 0, &os.PathError{Op: op, Path: f.name, Err: os.ErrClosed}
	}
	for {
		n, err := f.transfer(f.fd, isWrite, b, off)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 0, &os.PathError{Op: op, Path: f.name, Err: err}
		}
		return n, nil
	}
}

func (f *file) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		m, err := f.once("read", false, b[n:], off+int64(n))
		if err != nil {
			return n, err
		}
		if m == 0 {
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		m, err := f.once("write", true, b[n:], off+int64(n))
		if err != nil {
			return n, err
		}
		if m == 0 {
			return n, io.ErrShortWrite
		}
		n += m
	}
	return n, nil
}

func (f *file) Read(b []byte) (int, error) {
	f.position.Lock()
	defer f.position.Unlock()
	n, err := f.once("read", false, b, f.position.off)
	f.position.off += int64(n)
	if n == 0 && err == nil && len(b) > 0 {
		err = io.EOF
	}
	return n, err
}

func (f *file) Write(b []byte) (int, error) {
	f.position.Lock()
	defer f.position.Unlock()
	n, err := f.WriteAt(b, f.position.off)
	f.position.off += int64(n)
	return n, err
}

func (f *file) Seek(offset int64, whence int) (int64, error) {
	f.position.Lock()
	defer f.position.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += f.position.off
	case io.SeekEnd:
		var status syscall.Stat_t
		if err := syscall.Fstat(f.fd, &status); err != nil {
			return 0, &os.PathError{Op: "seek", Path: f.name, Err: err}
		}
		offset += status.Size
	}
	if offset < 0 {
		return 0, &os.PathError{Op: "seek", Path: f.name, Err: syscall.EINVAL}
	}
	f.position.off = offset
	return offset, nil
}
