package sakia

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A File is an open file. Its methods may be called by any number of goroutines at once, and behave as those
// of [os.File]: also if the file is closed meanwhile, after which calls that have begun go on, and later ones
// fail with [os.ErrClosed].
type File struct {
	// Owns the descriptor, and performs what does not wait.
	os   *os.File
	name string
	// The descriptor, to be used between acquire and release.
	fd int
	// Twice the number of calls that use the descriptor, and 1 once it is closed. Who leaves it at 1 closes.
	state atomic.Int64
	// It is a regular file or a block device. Others are left to os.File, which has the poller for pipes and
	// terminals.
	isOurs bool
	// Opened with O_DIRECT: reads from memory are not tried.
	isDirect bool
	// Opened with O_SYNC or O_DSYNC, or direct: writes wait for the disk.
	isSlowToWrite bool
	isAppending   bool
	// On a file system of localTypes.
	isLocal bool
	// Of a FUSE server.
	isRemote bool
	// The device of its file system, then.
	device uint64
	// The file system does not offer reads without waiting.
	isUntried atomic.Bool
	// Reads in a row of what was not in memory.
	misses atomic.Uint32
	// It is local, and a read was from memory.
	isHot atomic.Bool
	// Held by calls that use the position.
	position posLock
	// Held by reads and by writes with a context on a file that is left to os.File, since deadlines are its own.
	readDeadline, writeDeadline chan struct{}
	link                        link
}

var (
	_ fs.File            = (*File)(nil)
	_ fs.ReadDirFile     = (*File)(nil)
	_ io.ReadWriteSeeker = (*File)(nil)
	_ io.ReaderAt        = (*File)(nil)
	_ io.WriterAt        = (*File)(nil)
	_ io.StringWriter    = (*File)(nil)
	_ io.Closer          = (*File)(nil)
	_ syscall.Conn       = (*File)(nil)
)

var errAppendMode = errors.New("os: invalid use of WriteAt on file opened with O_APPEND")

// Open opens a file for reading, as [os.Open].
func Open(name string) (*File, error) { return OpenFile(name, os.O_RDONLY, 0) }

// Create creates or truncates a file, as [os.Create].
func Create(name string) (*File, error) {
	return OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// OpenFile opens a file, as [os.OpenFile].
func OpenFile(name string, flag int, perm fs.FileMode) (*File, error) {
	if enterPlain(quickMax, true) {
		defer leavePlain()
		return openPlain(name, flag, perm)
	}
	return openQueued(name, flag, perm)
}

func openPlain(name string, flag int, perm fs.FileMode) (*File, error) {
	for {
		fd, err := syscall.Open(name, flag|syscall.O_CLOEXEC, modeOf(perm))
		if err == nil {
			return adopt(fd, name, flag)
		}
		if err != syscall.EINTR {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// modeOf returns a mode as the system has it.
func modeOf(perm fs.FileMode) uint32 {
	mode := uint32(perm.Perm())
	if perm&fs.ModeSetuid != 0 {
		mode |= syscall.S_ISUID
	}
	if perm&fs.ModeSetgid != 0 {
		mode |= syscall.S_ISGID
	}
	if perm&fs.ModeSticky != 0 {
		mode |= syscall.S_ISVTX
	}
	return mode
}

// FromOSFile returns a File for a duplicate of the file's descriptor. Both have the same position, and are
// closed on their own. Calls that use the position are not ordered between them.
func FromOSFile(file *os.File) (*File, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var errno syscall.Errno
	if conn.Control(func(number uintptr) { fd, errno = duplicate(int(number)) }) != nil {
		return nil, &fs.PathError{Op: "dup", Path: file.Name(), Err: os.ErrClosed}
	}
	if errno != 0 {
		return nil, &fs.PathError{Op: "dup", Path: file.Name(), Err: errno}
	}
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFL, 0)
	if errno != 0 {
		syscall.Close(fd)
		return nil, &fs.PathError{Op: "dup", Path: file.Name(), Err: errno}
	}
	return adopt(fd, file.Name(), int(flags))
}

func duplicate(fd int) (int, syscall.Errno) {
	number, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	return int(number), errno
}

// Of `statfs(2)`.
const (
	typeFUSE = 0x65735546
	// Without contents.
	oPath = 0x200000
)

var (
	// File systems that answer on their own: ext4, XFS, Btrfs, tmpfs.
	localTypes = map[int64]bool{0xef53: true, 0x58465342: true, 0x9123683e: true, 0x01021994: true}
	// Those of the kernel's own files, which may be regular by their mode only: proc, sysfs, tracefs, debugfs,
	// cgroup2, cgroup, configfs, securityfs, bpf, pstore.
	kernelTypes = map[int64]bool{0x9fa0: true, 0x62656572: true, 0x74726163: true, 0x64626720: true,
		0x63677270: true, 0x27e0eb: true, 0x62656570: true, 0x73636673: true, 0xcafe4a11: true, 0x6165676c: true}
)

// adopt takes a descriptor over, which was opened with these flags.
func adopt(fd int, name string, flag int) (*File, error) {
	var status syscall.Stat_t
	if err := syscall.Fstat(fd, &status); err != nil {
		syscall.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	var system syscall.Statfs_t
	if syscall.Fstatfs(fd, &system) != nil {
		system.Type = 0
	}
	kind := status.Mode & syscall.S_IFMT
	isRegular := (kind == syscall.S_IFREG || kind == syscall.S_IFBLK) && flag&oPath == 0
	isPollable := flag&syscall.O_NONBLOCK != 0
	f := &File{name: name, fd: fd}
	if isPollable || kind == syscall.S_IFDIR || isRegular && !kernelTypes[int64(system.Type)] {
		f.os = os.NewFile(uintptr(fd), name)
	} else {
		f.os, isPollable = newPollable(fd, name)
	}
	f.isOurs = isRegular && !isPollable
	if !f.isOurs {
		f.readDeadline = make(chan struct{}, 1)
		f.writeDeadline = make(chan struct{}, 1)
		return f, nil
	}
	f.isLocal = localTypes[int64(system.Type)]
	f.isRemote = system.Type == typeFUSE
	f.device = status.Dev
	f.isAppending = flag&syscall.O_APPEND != 0
	f.isDirect = flag&syscall.O_DIRECT != 0
	f.isSlowToWrite = f.isDirect || flag&syscall.O_DSYNC != 0
	if f.isDirect {
		f.misses.Store(missesMax)
	}
	return f, nil
}

// newPollable returns a file that uses the runtime's poller if it can, as if os.OpenFile had opened it.
func newPollable(fd int, name string) (*os.File, bool) {
	if syscall.SetNonblock(fd, true) != nil {
		return os.NewFile(uintptr(fd), name), false
	}
	file := os.NewFile(uintptr(fd), name)
	if file.SetDeadline(time.Time{}) != nil {
		syscall.SetNonblock(fd, false)
		return file, false
	}
	return file, true
}

// acquire begins a use of the descriptor, unless the file is closed.
func (f *File) acquire() bool {
	for {
		state := f.state.Load()
		if state&1 != 0 {
			return false
		}
		if f.state.CompareAndSwap(state, state+2) {
			return true
		}
	}
}

// release ends a use. The last one of a closed file closes the descriptor.
func (f *File) release() {
	if f.state.Add(-2) == 1 {
		f.destroy()
	}
	runtime.KeepAlive(f)
}

func (f *File) destroy() error {
	f.unlink()
	if f.isRemote {
		// The server is asked, and may not answer: few threads wait for each one.
		slots, _ := closing.LoadOrStore(f.device, make(chan struct{}, remoteClosesMax))
		slots.(chan struct{}) <- struct{}{}
		defer func() { <-slots.(chan struct{}) }()
	}
	return f.os.Close()
}

// The closes of files of FUSE servers, by device: a channel with room for so many.
var closing sync.Map

const remoteClosesMax = 4

// Close closes the file, as [os.File.Close]. It does not wait for calls that have begun: the last of them
// closes the descriptor.
func (f *File) Close() error {
	if !f.isValid() {
		return os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.Close()
	}
	for {
		state := f.state.Load()
		if state&1 != 0 {
			return f.closed("close")
		}
		if f.state.CompareAndSwap(state, state|1) {
			f.position.close()
			if state == 0 {
				return f.destroy()
			}
			return nil
		}
	}
}

func (f *File) isValid() bool { return f != nil && f.os != nil }

func (f *File) closed(op string) error { return &fs.PathError{Op: op, Path: f.name, Err: os.ErrClosed} }

// failed returns an error of the kernel as one of the file's.
func (f *File) failed(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

// Name returns the name that the file was opened with.
func (f *File) Name() string { return f.name }

// ReadAt reads at an offset, as [os.File.ReadAt].
func (f *File) ReadAt(b []byte, off int64) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.ReadAt(b, off)
	}
	if off < 0 {
		return 0, &fs.PathError{Op: "readat", Path: f.name, Err: errors.New("negative offset")}
	}
	if len(b) == 0 {
		return 0, nil
	}
	if !f.acquire() {
		return 0, f.closed("read")
	}
	for len(b) > 0 {
		m, e := f.readSome(b, off)
		if e != nil {
			err = f.failed("read", e)
			break
		}
		if m == 0 {
			err = io.EOF
			break
		}
		n += m
		b = b[m:]
		off += int64(m)
	}
	f.release()
	return n, err
}

// Read reads at the position, as [os.File.Read].
func (f *File) Read(b []byte) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.Read(b)
	}
	if !f.acquire() {
		return 0, f.closed("read")
	}
	if f.position.lock(nil) != lockHeld {
		f.release()
		return 0, f.closed("read")
	}
	if len(b) > 0 {
		n, err = f.readSome(b, -1)
		// Of what is in memory in part, a try or a ring may give that part alone; read(2) waits for the rest.
		for n > 0 && n < len(b) && err == nil && f.hasMore() {
			m, e := f.readSome(b[n:], -1)
			if m <= 0 || e != nil {
				break // the next call has the error
			}
			n += m
		}
		if n == 0 && err == nil {
			err = io.EOF
		}
	}
	f.position.unlock()
	f.release()
	return n, f.failed("read", err)
}

// hasMore reports whether the file has bytes behind its position. The kernel's own files have no length.
func (f *File) hasMore() bool {
	var status syscall.Stat_t
	position, err := syscall.Seek(f.fd, 0, io.SeekCurrent)
	return err == nil && syscall.Fstat(f.fd, &status) == nil && status.Size > position
}

// readSome reads once, by the way that is cheapest now. A negative offset is the position.
func (f *File) readSome(b []byte, off int64) (int, error) {
	if len(b) > transferMax {
		b = b[:transferMax]
	}
	if n, ok := f.tryRead(b, off); ok {
		return n, nil
	}
	if f.enterPlain(false) {
		n, err := plainRead(f.fd, b, off)
		leavePlain()
		return n, err
	}
	return f.transferQueued(opRead, b, off)
}

func plainRead(fd int, b []byte, off int64) (n int, err error) {
	for {
		if off < 0 {
			n, err = syscall.Read(fd, b)
		} else {
			n, err = syscall.Pread(fd, b, off)
		}
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// WriteAt writes at an offset, as [os.File.WriteAt].
func (f *File) WriteAt(b []byte, off int64) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.WriteAt(b, off)
	}
	if f.isAppending {
		return 0, errAppendMode
	}
	if off < 0 {
		return 0, &fs.PathError{Op: "writeat", Path: f.name, Err: errors.New("negative offset")}
	}
	if len(b) == 0 {
		return 0, nil
	}
	if !f.acquire() {
		return 0, f.closed("write")
	}
	n, err = f.writeAll(b, off)
	f.release()
	return n, f.failed("write", err)
}

// Write writes at the position, as [os.File.Write].
func (f *File) Write(b []byte) (n int, err error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.Write(b)
	}
	if !f.acquire() {
		return 0, f.closed("write")
	}
	if f.position.lock(nil) != lockHeld {
		f.release()
		return 0, f.closed("write")
	}
	n, err = f.writeAll(b, -1)
	f.position.unlock()
	f.release()
	return n, f.failed("write", err)
}

// WriteString writes a string at the position.
func (f *File) WriteString(s string) (n int, err error) { return f.Write([]byte(s)) }

func (f *File) writeAll(b []byte, off int64) (n int, err error) {
	for {
		m, err := f.writeSome(b[n:], off)
		n += m
		// A write of nothing has errors, too.
		if err != nil || n == len(b) {
			return n, err
		}
		if m == 0 {
			return n, io.ErrUnexpectedEOF
		}
		if off >= 0 {
			off += int64(m)
		}
	}
}

func (f *File) writeSome(b []byte, off int64) (int, error) {
	if len(b) > transferMax {
		b = b[:transferMax]
	}
	if len(b) == 0 || f.enterPlain(!f.isSlowToWrite) {
		n, err := plainWrite(f.fd, b, off)
		if len(b) > 0 {
			leavePlain()
		}
		return n, err
	}
	return f.transferQueued(opWrite, b, off)
}

func plainWrite(fd int, b []byte, off int64) (n int, err error) {
	for {
		if off < 0 {
			n, err = syscall.Write(fd, b)
		} else {
			n, err = syscall.Pwrite(fd, b, off)
		}
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// Seek sets the position, as [os.File.Seek]. It waits for calls that use the position.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	if !f.isValid() {
		return 0, os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.Seek(offset, whence)
	}
	if !f.acquire() {
		return 0, f.closed("seek")
	}
	if f.position.lock(nil) != lockHeld {
		f.release()
		return 0, f.closed("seek")
	}
	position, err := syscall.Seek(f.fd, offset, whence)
	f.position.unlock()
	f.release()
	if err != nil {
		return 0, f.failed("seek", err)
	}
	return position, nil
}

// Sync makes the file durable, as [os.File.Sync].
func (f *File) Sync() error { return f.sync("sync", false) }

// Datasync makes the contents of the file durable, and of its metadata only what reading them needs, as
// fdatasync(2).
func (f *File) Datasync() error { return f.sync("datasync", true) }

func (f *File) sync(op string, dataOnly bool) error {
	if !f.isValid() {
		return os.ErrInvalid
	}
	if !f.isOurs && !dataOnly {
		return f.os.Sync()
	}
	return f.whileOpen(op, func() error {
		// The queue is lent the descriptors of our own files only, since their close waits for it.
		if isPlain := f.enterPlain(false); isPlain || !f.isOurs {
			err := plainSync(f.fd, dataOnly)
			if isPlain {
				leavePlain()
			}
			return err
		}
		return f.syncQueued(dataOnly)
	})
}

func plainSync(fd int, dataOnly bool) error {
	call := syscall.Fsync
	if dataOnly {
		call = syscall.Fdatasync
	}
	for {
		if err := call(fd); err != syscall.EINTR {
			return err
		}
	}
}

// whileOpen performs a call on the descriptor.
func (f *File) whileOpen(op string, call func() error) error {
	if !f.isOurs {
		conn, err := f.os.SyscallConn()
		if err != nil {
			return err
		}
		var failure error
		if err := conn.Control(func(uintptr) { failure = call() }); err != nil {
			return f.closed(op)
		}
		return f.failed(op, failure)
	}
	if !f.acquire() {
		return f.closed(op)
	}
	err := call()
	f.release()
	return f.failed(op, err)
}

// Truncate sets the length, as [os.File.Truncate].
func (f *File) Truncate(size int64) error {
	if !f.isValid() {
		return os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.Truncate(size)
	}
	return f.whileOpen("truncate", func() error {
		if size < 0 || f.enterPlain(true) {
			for {
				if err := syscall.Ftruncate(f.fd, size); err != syscall.EINTR {
					if size >= 0 {
						leavePlain()
					}
					return err
				}
			}
		}
		return f.truncateQueued(size)
	})
}

// Stat returns the file's attributes, as [os.File.Stat].
func (f *File) Stat() (fs.FileInfo, error) {
	if !f.isValid() {
		return nil, os.ErrInvalid
	}
	if !f.isOurs {
		return f.os.Stat()
	}
	if !f.acquire() {
		return nil, f.closed("stat")
	}
	defer f.release()
	isPlain := f.enterPlain(true)
	if isPlain {
		defer leavePlain()
	} else if err := f.statQueued(); err != nil {
		return nil, f.failed("stat", err)
	}
	return f.os.Stat()
}

// The rest is of the os package: it does not wait for a disk, or is rare.

// ReadDir reads entries of a directory, as [os.File.ReadDir].
func (f *File) ReadDir(n int) ([]fs.DirEntry, error) {
	return onOS(f, "readdir", n, (*os.File).ReadDir)
}

// Readdir reads entries of a directory, as [os.File.Readdir].
func (f *File) Readdir(n int) ([]fs.FileInfo, error) {
	return onOS(f, "readdir", n, (*os.File).Readdir)
}

// Readdirnames reads names of a directory, as [os.File.Readdirnames].
func (f *File) Readdirnames(n int) ([]string, error) {
	return onOS(f, "readdir", n, (*os.File).Readdirnames)
}

// Chmod sets the mode, as [os.File.Chmod].
func (f *File) Chmod(mode fs.FileMode) error {
	_, err := onOS(f, "chmod", mode, func(file *os.File, mode fs.FileMode) (struct{}, error) {
		return struct{}{}, file.Chmod(mode)
	})
	return err
}

// Chown sets the owner, as [os.File.Chown].
func (f *File) Chown(uid, gid int) error {
	_, err := onOS(f, "chown", [2]int{uid, gid}, func(file *os.File, ids [2]int) (struct{}, error) {
		return struct{}{}, file.Chown(ids[0], ids[1])
	})
	return err
}

// Chdir makes the directory the working directory, as [os.File.Chdir].
func (f *File) Chdir() error {
	_, err := onOS(f, "chdir", 0, func(file *os.File, _ int) (struct{}, error) {
		return struct{}{}, file.Chdir()
	})
	return err
}

// SetDeadline sets the deadline of a pipe or the like, as [os.File.SetDeadline]. Regular files have none.
func (f *File) SetDeadline(t time.Time) error {
	_, err := onOS(f, "set deadline", t, func(file *os.File, t time.Time) (struct{}, error) {
		return struct{}{}, file.SetDeadline(t)
	})
	return err
}

// SyscallConn returns the descriptor for calls that this package does not have. The file is open until they
// return, but its methods do not wait for them.
func (f *File) SyscallConn() (syscall.RawConn, error) {
	return onOS(f, "SyscallConn", 0, func(file *os.File, _ int) (syscall.RawConn, error) {
		return file.SyscallConn()
	})
}

// onOS calls a method of os.File, unless ours is closed.
func onOS[A, R any](f *File, op string, arg A, call func(*os.File, A) (R, error)) (R, error) {
	var none R
	if !f.isValid() {
		return none, os.ErrInvalid
	}
	if f.isOurs {
		if !f.acquire() {
			return none, f.closed(op)
		}
		defer f.release()
	}
	return call(f.os, arg)
}
