package sakia

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// The most bytes that a method with a context transfers at a time: each part needs a buffer of that size.
const partMax = 1 << 20

// A page, which direct reads and writes need their memory aligned to.
const pageSize = 4096

var bufferSizes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, partMax}

var buffers [len(bufferSizes)]sync.Pool

// A buffer is memory of the package's own, which the kernel may use after a caller has gone.
type buffer struct {
	bytes []byte
	class int
}

// newBuffer returns a buffer for so many bytes, at most partMax.
func newBuffer(size int) *buffer {
	class := 0
	for bufferSizes[class] < size {
		class++
	}
	if b, ok := buffers[class].Get().(*buffer); ok {
		return b
	}
	whole := make([]byte, bufferSizes[class]+pageSize)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % pageSize
	return &buffer{whole[skip : skip+uintptr(bufferSizes[class])], class}
}

func (b *buffer) free() { buffers[b.class].Put(b) }

// ReadAtContext is [File.ReadAt], but returns with the context's error when the context is done. The slice
// is not written to afterwards.
func (f *File) ReadAtContext(ctx context.Context, b []byte, off int64) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if err := ctx.Err(); err != nil {
		return 0, f.failed("read", err)
	}
	if ctx.Done() == nil {
		return f.ReadAt(b, off)
	}
	if !f.isOurs {
		return f.withDeadline(ctx, "read", (*os.File).SetReadDeadline, func() (int, error) {
			return f.os.ReadAt(b, off)
		})
	}
	if off < 0 {
		return 0, &fs.PathError{Op: "readat", Path: f.name, Err: errors.New("negative offset")}
	}
	for len(b) > 0 {
		m, e := f.readPart(ctx, b, off)
		if e != nil {
			return n, e
		}
		if m == 0 {
			return n, io.EOF
		}
		n += m
		b = b[m:]
		off += int64(m)
	}
	return n, nil
}

// readPart reads once, by a buffer of the package.
func (f *File) readPart(ctx context.Context, b []byte, off int64) (int, error) {
	if !f.acquire() {
		return 0, f.closed("read")
	}
	if n, ok := f.tryRead(b, off); ok {
		f.release()
		return n, nil
	}
	memory := newBuffer(min(len(b), partMax))
	part := memory.bytes[:min(len(b), partMax)]
	n, _, err := await(ctx, work{code: opRead, file: f, buf: part, off: off}, func(n int64, isTaken bool) {
		if isTaken && n > 0 {
			copy(b, part[:n])
		}
		memory.free()
		f.release()
	})
	return max(int(n), 0), f.failed("read", err)
}

// ReadContext is [File.Read] with a context. If it is canceled, the position of a regular file stays as it
// was. On a pipe or the like the context acts by way of the deadline, which is then none.
func (f *File) ReadContext(ctx context.Context, b []byte) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if err := ctx.Err(); err != nil {
		return 0, f.failed("read", err)
	}
	if ctx.Done() == nil {
		return f.Read(b)
	}
	if !f.isOurs {
		return f.withDeadline(ctx, "read", (*os.File).SetReadDeadline, func() (int, error) { return f.os.Read(b) })
	}
	if !f.acquire() {
		return 0, f.closed("read")
	}
	defer f.release()
	if err := f.lockPosition(ctx, "read"); err != nil {
		return 0, err
	}
	if len(b) == 0 {
		f.position.unlock()
		return 0, nil
	}
	off, err := syscall.Seek(f.fd, 0, io.SeekCurrent)
	if err == nil {
		n, err = f.readPart(ctx, b, off)
	}
	if errors.Is(err, syscall.ESPIPE) {
		// Some files of the kernel are not read at offsets.
		f.position.unlock()
		return f.Read(b)
	}
	defer f.position.unlock()
	for n > 0 && err == nil {
		if _, err = syscall.Seek(f.fd, off+int64(n), io.SeekStart); err != nil {
			err = f.failed("read", err)
			break
		}
		if n == len(b) || !f.hasMore() {
			return n, nil
		}
		m, e := f.readPart(ctx, b[n:], off+int64(n))
		if m == 0 {
			// What was read counts, but a context that is done is told of.
			if ctx.Err() != nil {
				return n, e
			}
			return n, nil
		}
		n += m
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (f *File) lockPosition(ctx context.Context, op string) error {
	switch f.position.lock(ctx.Done()) {
	case lockClosed:
		return f.closed(op)
	case lockCanceled:
		return f.failed(op, ctx.Err())
	}
	return nil
}

// WriteAtContext is [File.WriteAt], but returns with the context's error when the context is done. The bytes
// in the slice when it was called are then written whole, in part or not at all, perhaps later.
func (f *File) WriteAtContext(ctx context.Context, b []byte, off int64) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if err := ctx.Err(); err != nil {
		return 0, f.failed("write", err)
	}
	if ctx.Done() == nil {
		return f.WriteAt(b, off)
	}
	if !f.isOurs {
		return f.withDeadline(ctx, "write", (*os.File).SetWriteDeadline, func() (int, error) {
			return f.os.WriteAt(b, off)
		})
	}
	if f.isAppending {
		return 0, errAppendMode
	}
	if off < 0 {
		return 0, &fs.PathError{Op: "writeat", Path: f.name, Err: errors.New("negative offset")}
	}
	return f.writeParts(ctx, b, off, func() {})
}

// WriteContext is [File.Write] with a context. If it is canceled, the position of the file stays behind what
// was reported to be written; only if it was opened to append, further calls that use the position wait for
// the canceled one.
func (f *File) WriteContext(ctx context.Context, b []byte) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if err := ctx.Err(); err != nil {
		return 0, f.failed("write", err)
	}
	if ctx.Done() == nil || len(b) == 0 {
		return f.Write(b)
	}
	if !f.isOurs {
		return f.withDeadline(ctx, "write", (*os.File).SetWriteDeadline, func() (int, error) { return f.os.Write(b) })
	}
	if !f.acquire() {
		return 0, f.closed("write")
	}
	defer f.release()
	if err := f.lockPosition(ctx, "write"); err != nil {
		return 0, err
	}
	off, err := syscall.Seek(f.fd, 0, io.SeekCurrent)
	if err == nil && !f.isAppending {
		n, err = f.writeParts(ctx, b, off, func() {})
	}
	if f.isAppending || errors.Is(err, syscall.ESPIPE) {
		// The kernel knows where it appends, so the position is its own. Some of its files are not written at
		// offsets.
		return f.writeParts(ctx, b, -1, f.position.unlock)
	}
	defer f.position.unlock()
	if n > 0 {
		_, seekErr := syscall.Seek(f.fd, off+int64(n), io.SeekStart)
		err = errors.Join(err, f.failed("write", seekErr))
	}
	return n, err
}

// writeParts writes all, by buffers of the package, and calls after when the kernel has ended the last part,
// which may be later than its return.
func (f *File) writeParts(ctx context.Context, b []byte, off int64, after func()) (n int, err error) {
	for n < len(b) {
		if err := ctx.Err(); err != nil {
			after()
			return n, f.failed("write", err)
		}
		if !f.acquire() {
			after()
			return n, f.closed("write")
		}
		size := min(len(b)-n, partMax)
		memory := newBuffer(size)
		part := memory.bytes[:copy(memory.bytes[:size], b[n:])]
		m, isGone, err := await(ctx, work{code: opWrite, file: f, buf: part, off: off}, func(_ int64, isTaken bool) {
			memory.free()
			if !isTaken {
				after()
			}
			f.release()
		})
		if m > 0 {
			n += int(m)
			if off >= 0 {
				off += m
			}
		}
		switch {
		case isGone:
			return n, f.failed("write", err)
		case err != nil:
			after()
			return n, f.failed("write", err)
		case m == 0:
			after()
			return n, f.failed("write", io.ErrUnexpectedEOF)
		}
	}
	after()
	return n, nil
}

// SyncContext is [File.Sync] with a context.
func (f *File) SyncContext(ctx context.Context) error { return f.syncContext(ctx, "sync", 0) }

// DatasyncContext is [File.Datasync] with a context.
func (f *File) DatasyncContext(ctx context.Context) error { return f.syncContext(ctx, "datasync", 1) }

func (f *File) syncContext(ctx context.Context, op string, flags uint32) error {
	if !f.isValid() {
		return os.ErrInvalid
	}
	if err := ctx.Err(); err != nil {
		return f.failed(op, err)
	}
	if ctx.Done() == nil || !f.isOurs {
		return f.sync(op, flags == 1)
	}
	if !f.acquire() {
		return f.closed(op)
	}
	_, _, err := await(ctx, work{code: opSync, file: f, flags: flags}, func(int64, bool) { f.release() })
	return f.failed(op, err)
}

// withDeadline performs a call of os.File, and ends it by a deadline if the context is done. A file without
// deadlines is waited for.
func (f *File) withDeadline(ctx context.Context, op string, set func(*os.File, time.Time) error,
	call func() (int, error)) (int, error) {
	if set(f.os, time.Time{}) != nil {
		return call()
	}
	held := f.readDeadline
	if op == "write" {
		held = f.writeDeadline
	}
	select {
	case held <- struct{}{}:
	case <-ctx.Done():
		return 0, f.failed(op, ctx.Err())
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		set(f.os, time.Unix(1, 0))
		close(ended)
	})
	n, err := call()
	if !stop() {
		<-ended
		set(f.os, time.Time{})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = f.failed(op, ctx.Err())
		}
	}
	<-held
	return n, err
}
