package sakia

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	rwfNowait = 0x8
	// Longer reads take long enough that Go's scheduler has to know.
	rawMax = 16 << 10
	// As the os package: some kernels refuse more at a time.
	transferMax = 1 << 30
	// After so many reads in a row of what was not in memory, only some are tried.
	missesMax = 4
	// One of how many.
	tryEvery = 8
)

var tellsScheduler atomic.Bool

// Tries under way that the scheduler was told of. The kernel starts to read ahead in them, and that may wait
// after all, for the tree of the file's extents or a place in the disk's queue: they count as plain calls.
var tries atomic.Int32

// SetTellScheduler says whether Go's scheduler is told of reads of up to 16 KiB from memory, as of all other
// system calls. It costs a tenth of the time of such a read. Without it a goroutine keeps its processor, and
// a collection of garbage waits for it, also in the rare case that the read waits after all. Programs need it
// that read into mappings of files on slow disks, or whose disks may stop to answer.
//
// The scheduler is told in any case if the last read of the file was not of memory, if other calls wait, and
// on other file systems than ext4, XFS, Btrfs and tmpfs.
func SetTellScheduler(tells bool) { tellsScheduler.Store(tells) }

// tryRead reads what is in memory, at an offset, or at the position if that is negative. It reports whether
// it did; otherwise a call that may wait has to be made, which also has the error, if there is one.
func (f *File) tryRead(b []byte, off int64) (int, bool) {
	misses := f.misses.Load()
	if misses >= missesMax {
		if f.isDirect || f.isUntried.Load() {
			return 0, false
		}
		f.misses.Store(misses + 1)
		if misses%tryEvery != 0 {
			return 0, false
		}
	}
	part := syscall.Iovec{Base: unsafe.SliceData(b)}
	part.SetLen(len(b))
	var n uintptr
	var errno syscall.Errno
	if misses == 0 && len(b) <= rawMax && f.isHot.Load() && plain.Load()+queued.Load() == 0 &&
		!tellsScheduler.Load() {
		n, _, errno = syscall.RawSyscall6(sysPreadv2, uintptr(f.fd), uintptr(unsafe.Pointer(&part)), 1,
			uintptr(off), 0, rwfNowait)
	} else {
		most := int32(waitersMax)
		if f.isRemote {
			most = remoteWaitersMax
		}
		if tries.Add(1)+plain.Load() > most && hasQueue() {
			tries.Add(-1)
			return 0, false
		}
		n, _, errno = syscall.Syscall6(sysPreadv2, uintptr(f.fd), uintptr(unsafe.Pointer(&part)), 1,
			uintptr(off), 0, rwfNowait)
		tries.Add(-1)
		if errno == 0 && n > 0 && f.isLocal {
			f.isHot.Store(true)
		}
	}
	switch errno {
	case 0:
		// Some kernels answer 0 where they should say that it may wait. At the end of the file a second call
		// costs little.
		if n == 0 {
			return 0, false
		}
		raceWrote(b[:n])
		if misses != 0 {
			f.misses.Store(0)
		}
		countNoWait(f)
		return int(n), true
	case syscall.EAGAIN:
		f.misses.Store(misses + 1)
	case syscall.EOPNOTSUPP, syscall.ENOSYS:
		f.isUntried.Store(true)
		f.misses.Store(missesMax)
	}
	return 0, false
}
