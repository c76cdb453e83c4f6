package sakia

import (
	"sync/atomic"
	"unsafe"
)

// Counts says how calls were made since the program began.
type Counts struct {
	// Reads and writes done without waiting, in memory.
	NoWait uint64
	// Calls that were plain system calls, since few others waited.
	Plain uint64
	// Calls that were requests of the queue.
	Queued uint64
	// Submissions to the queue: each is of all requests that had come together.
	Submits uint64
	// Requests whose caller left since its context was done.
	Abandoned uint64
	// Requests under way now, of any kind.
	UnderWay int64
	// Buffers that the kernel may use now: each is pinned.
	Pinned int64
}

// Stats returns the counts so far. They may be a moment old.
func Stats() Counts {
	var all Counts
	for i := range noWaits {
		all.NoWait += noWaits[i].count.Load()
	}
	all.Plain = plainCount.Load()
	all.Queued = queuedCount.Load()
	all.Submits = submitCount.Load()
	all.Abandoned = abandonedCount.Load()
	all.UnderWay = int64(queued.Load())
	all.Pinned = pinned.Load()
	return all
}

// A counter on a cache line of its own.
type cell struct {
	count atomic.Uint64
	_     [56]byte
}

var (
	// By file, so that readers of different files rarely share a line.
	noWaits [16]cell

	plainCount, queuedCount, submitCount, abandonedCount atomic.Uint64

	pinned atomic.Int64
)

func countNoWait(f *File) {
	noWaits[uintptr(unsafe.Pointer(f))>>7%16].count.Add(1)
}

// How many goroutines are within calls that may wait: as plain calls, and by way of the queue. A goroutine
// counts until it runs again, so that a crowd whose results came together still looks like one.
var plain, queued atomic.Int32

const (
	// The calls that may wait on threads of Go: beyond them a queue is cheaper.
	waitersMax = 8
	// The same for files of a FUSE server, which may never answer.
	remoteWaitersMax = 2
	// The same for calls that wait only on slow servers and full disks: opens, closes, and writes to the page
	// cache. For them a thread switch is dearer than the call, so only many of them are a crowd.
	quickMax = 8
)

// enterPlain reports whether a call should be a plain one, and counts it; then leavePlain is due. It is if
// fewer than most others wait, or, if it is quick, if fewer are plain calls.
func enterPlain(most int32, isQuick bool) bool {
	others := plain.Load()
	if !isQuick {
		others += queued.Load() + tries.Load()
	}
	if others >= most && hasQueue() {
		return false
	}
	plain.Add(1)
	return true
}

// enterPlain is that of calls on the file.
func (f *File) enterPlain(isQuick bool) bool {
	if f.isRemote {
		return enterPlain(remoteWaitersMax, false)
	}
	return enterPlain(waitersMax, isQuick)
}

func leavePlain() {
	plain.Add(-1)
	plainCount.Add(1)
}
