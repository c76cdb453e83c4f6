//go:build cgo && linux

package sakia

/*
#cgo noescape sakia_queue_submit
#cgo nocallback sakia_queue_submit
#cgo noescape sakia_queue_take
#cgo nocallback sakia_queue_take
#cgo noescape sakia_queue_cancel
#cgo nocallback sakia_queue_cancel
#include <sakia.h>
#include <stdlib.h>

static sakia_queue_options queue_options(void) {
    sakia_queue_options options = SAKIA_QUEUE_OPTIONS;
    return options;
}
*/
import "C"

import (
	"context"
	"encoding/binary"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	opRead     = C.SAKIA_OP_READ
	opWrite    = C.SAKIA_OP_WRITE
	opSync     = C.SAKIA_OP_SYNC
	opOpen     = C.SAKIA_OP_OPEN
	opClose    = C.SAKIA_OP_CLOSE
	opStat     = C.SAKIA_OP_STAT
	opTruncate = C.SAKIA_OP_TRUNCATE
)

const (
	// The most requests of one submission, and the most results that are taken at a time.
	batchMax = 128
	// The most goroutines that submit at a time. A submission should not wait, but it may where the disk's
	// queue is full.
	submittersMax = 4
	// Batches that are kept for later submissions.
	batchesKept = 16
	// How long a submitter waits if the queue has as many requests as it may.
	fullPause = 100 * time.Microsecond
)

// The queue, which is made by the first call that needs it.
var (
	theQueue  queue
	startOnce sync.Once
)

type queue struct {
	c *C.sakia_queue
	// Requests that no submitter has taken yet, newest first. The one that finds none becomes a submitter.
	head       atomic.Pointer[request]
	submitters atomic.Int32
	// All requests, by token. It is copied when it grows.
	table atomic.Pointer[[]*request]
	// Its event, for the runtime's poller.
	event *os.File
	why   string

	mu      sync.Mutex
	free    []*request
	batches []*batch
}

// A batch is memory of C for a submission.
type batch struct {
	requests *[batchMax]C.sakia_request
	results  *[batchMax]C.sakia_result
	done     *C.size_t
	from     [batchMax]*request
}

// work is an operation.
type work struct {
	code  uint32
	flags uint32
	file  *File
	buf   []byte
	off   int64
	mode  uint32
	// With a zero at its end.
	path []byte
	// Instead of file.
	handle *C.sakia_file
}

// A request is a place for operations, one after the other. Its number is the token.
//
//  1. Its caller fills it in, and adds it to the list of the queue.
//  2. A submitter submits it, notes the ticket, and leaves it. Its result arrives. Who comes second settles
//     it, so it is not used again while the submitter still holds it.
//  3. If its caller waits, it gets the result. If the caller has gone, a goroutine ends the operation in its
//     place.
type request struct {
	next  *request
	token uint64
	work  work
	pins  runtime.Pinner
	// Two: the submitter and the result.
	holders atomic.Int32
	// Set by the first of the caller, who leaves, and the result, which comes.
	owner atomic.Int32
	// Names it to the queue, for a cancellation.
	ticket     atomic.Uint64
	isCanceled atomic.Bool
	done       chan struct{}
	value      int64
	opened     *C.sakia_file
	// Ends the operation: it is called once, with the value, and whether the caller gets it.
	after func(value int64, isTaken bool)
}

const (
	ownedByCaller = iota
	abandoned
	answered
)

// getQueue returns the queue; nil if there is none.
func getQueue() *queue {
	startOnce.Do(func() { theQueue.start(0) })
	if theQueue.c == nil {
		return nil
	}
	return &theQueue
}

func hasQueue() bool { return getQueue() != nil }

// Why returns why files do not use a ring of io_uring, in English; an empty text if they do.
func Why() string {
	startOnce.Do(func() { theQueue.start(0) })
	return theQueue.why
}

// lastError is only about the calling thread's last call.
func lastError() string { return C.GoString(C.sakia_last_error()) }

// start makes the queue, for so many requests at a time; 0 for as many as the library likes.
func (q *queue) start(underWayMax uint32) {
	options := C.queue_options()
	options.under_way_max = C.uint32_t(underWayMax)
	options.threads = C.uint32_t(min(4, max(1, runtime.NumCPU()/4)))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var c *C.sakia_queue
	if C.sakia_queue_new(&options, &c) < 0 {
		q.why = "no queue of libsakia: " + lastError()
		return
	}
	fd := C.sakia_queue_pollable(c)
	if fd < 0 {
		q.why = "no queue of libsakia: " + lastError()
		C.sakia_queue_free(c)
		return
	}
	if why := C.sakia_queue_why_no_ring(c); why != nil {
		q.why = C.GoString(why)
	}
	syscall.SetNonblock(int(fd), true)
	q.event = os.NewFile(uintptr(fd), "sakia-queue")
	q.table.Store(new([]*request))
	q.c = c
	go q.reap()
}

// get returns a request.
func (q *queue) get(w work) *request {
	q.mu.Lock()
	var r *request
	if last := len(q.free) - 1; last >= 0 {
		r = q.free[last]
		q.free = q.free[:last]
	} else {
		old := *q.table.Load()
		r = &request{token: uint64(len(old)), done: make(chan struct{}, 1)}
		// The elements behind the end are written once: older readers do not look there.
		table := append(old, r)
		q.table.Store(&table)
	}
	q.mu.Unlock()
	r.work = w
	r.holders.Store(2)
	r.owner.Store(ownedByCaller)
	r.ticket.Store(0)
	r.isCanceled.Store(false)
	if len(w.buf) > 0 {
		r.pins.Pin(unsafe.SliceData(w.buf))
		pinned.Add(1)
	}
	if len(w.path) > 0 {
		r.pins.Pin(unsafe.SliceData(w.path))
		pinned.Add(1)
	}
	return r
}

// put gives a request back, whose result has come.
func (q *queue) put(r *request) {
	if n := min(len(r.work.buf), 1) + min(len(r.work.path), 1); n > 0 {
		r.pins.Unpin()
		pinned.Add(-int64(n))
	}
	r.work = work{}
	r.after = nil
	r.opened = nil
	q.mu.Lock()
	q.free = append(q.free, r)
	q.mu.Unlock()
}

func (q *queue) getBatch() *batch {
	q.mu.Lock()
	if last := len(q.batches) - 1; last >= 0 {
		b := q.batches[last]
		q.batches = q.batches[:last]
		q.mu.Unlock()
		return b
	}
	q.mu.Unlock()
	b := new(batch)
	b.requests = (*[batchMax]C.sakia_request)(C.calloc(batchMax, C.sizeof_sakia_request))
	b.results = (*[batchMax]C.sakia_result)(C.calloc(batchMax, C.sizeof_sakia_result))
	b.done = (*C.size_t)(C.calloc(1, C.sizeof_size_t))
	return b
}

func (q *queue) putBatch(b *batch) {
	q.mu.Lock()
	isKept := len(q.batches) < batchesKept
	if isKept {
		q.batches = append(q.batches, b)
	}
	q.mu.Unlock()
	if !isKept {
		C.free(unsafe.Pointer(b.requests))
		C.free(unsafe.Pointer(b.results))
		C.free(unsafe.Pointer(b.done))
	}
}

// begin has a request submitted. Its caller then waits for done.
func (q *queue) begin(r *request) {
	for {
		head := q.head.Load()
		r.next = head
		if q.head.CompareAndSwap(head, r) {
			if head == nil {
				q.combine()
			}
			return
		}
	}
}

// combine submits all requests that were begun, unless so many others do.
func (q *queue) combine() {
	if q.submitters.Add(1) <= submittersMax {
		// Goroutines that can run may have requests, too: those that the same results have woken, above all.
		runtime.Gosched()
		q.submitAll()
	}
	// A request that found too many submitters is seen here by the last of them.
	if q.submitters.Add(-1) < submittersMax && q.head.Load() != nil {
		go q.combine()
	}
}

func (q *queue) submitAll() {
	var list *request
	for newest := q.head.Swap(nil); newest != nil; {
		next := newest.next
		newest.next = list
		list, newest = newest, next
	}
	b := q.getBatch()
	for list != nil {
		count := 0
		for ; list != nil && count < batchMax; count++ {
			r := list
			list = r.next
			r.next = nil
			b.from[count] = r
			r.fill(&b.requests[count])
		}
		q.submit(b, count)
	}
	q.putBatch(b)
}

// fill writes a request of C. All Go memory that it names is pinned.
func (r *request) fill(c *C.sakia_request) {
	w := &r.work
	*c = C.sakia_request{op: C.uint32_t(w.code), flags: C.uint32_t(w.flags), token: C.uint64_t(r.token),
		file: w.handle, offset: C.uint64_t(w.off)}
	if w.file != nil {
		c.file = w.file.link.handle.Load().c
	}
	if len(w.buf) > 0 {
		c.buf = unsafe.Pointer(unsafe.SliceData(w.buf))
		c.len = C.size_t(len(w.buf))
	}
	if len(w.path) > 0 {
		c.path = (*C.char)(unsafe.Pointer(unsafe.SliceData(w.path)))
	}
	c.arg[0] = C.uint32_t(w.mode)
}

// submit submits the first requests of a batch.
func (q *queue) submit(b *batch, count int) {
	for at := 0; at < count; {
		accepted := int(C.sakia_queue_submit(q.c, &b.requests[at], C.size_t(count-at), &b.results[0], b.done))
		submitCount.Add(1)
		if accepted == -int(syscall.EAGAIN) {
			time.Sleep(fullPause)
			continue
		}
		if accepted < 0 {
			r := b.from[at]
			b.from[at] = nil
			r.value = int64(accepted)
			r.settle(q)
			r.settle(q)
			at++
			continue
		}
		for i := range int(*b.done) {
			q.arrive(&b.results[i])
		}
		for i := at; i < at+accepted; i++ {
			r := b.from[i]
			b.from[i] = nil
			r.ticket.Store(uint64(b.requests[i].ticket))
			if r.isCanceled.Load() {
				C.sakia_queue_cancel(q.c, b.requests[i].ticket)
			}
			r.settle(q)
		}
		at += accepted
	}
}

func (q *queue) arrive(result *C.sakia_result) {
	r := (*q.table.Load())[result.token]
	r.value = int64(result.value)
	r.opened = result.file
	r.settle(q)
}

// settle ends a hold. The last one hands the result over.
func (r *request) settle(q *queue) {
	if r.holders.Add(-1) > 0 {
		return
	}
	if r.owner.CompareAndSwap(ownedByCaller, answered) {
		r.done <- struct{}{}
		return
	}
	// It may close the file, and wait for that.
	go r.finish(q, false)
}

// finish ends an operation, and gives its request back.
func (r *request) finish(q *queue, isTaken bool) (int64, *C.sakia_file) {
	value, opened, after := r.value, r.opened, r.after
	if !isTaken && opened != nil {
		C.sakia_file_unref(opened)
	}
	if value > 0 && r.work.code == opRead {
		raceWrote(r.work.buf[:value])
	} else if r.work.code == opWrite {
		raceRead(r.work.buf)
	}
	q.put(r)
	queued.Add(-1)
	if after != nil {
		after(value, isTaken)
	}
	return value, opened
}

// reap takes results for ever.
func (q *queue) reap() {
	results := (*[batchMax]C.sakia_result)(C.calloc(batchMax, C.sizeof_sakia_result))
	conn, err := q.event.SyscallConn()
	if err != nil {
		panic(err)
	}
	for {
		err := conn.Read(func(uintptr) bool {
			for {
				count := int(C.sakia_queue_take(q.c, &results[0], batchMax))
				for i := range count {
					q.arrive(&results[i])
				}
				if count <= 0 {
					return false
				}
			}
		})
		if err != nil {
			panic("sakia: nothing to wait for results by: " + err.Error())
		}
	}
}

// perform performs an operation by the queue, and waits for it.
func perform(w work) (int64, *C.sakia_file) {
	q := getQueue()
	if w.file != nil {
		if errno := w.file.register(); errno < 0 {
			return errno, nil
		}
	}
	queued.Add(1)
	queuedCount.Add(1)
	raceReleased()
	r := q.get(w)
	q.begin(r)
	<-r.done
	return r.finish(q, true)
}

// await performs an operation by the queue, and waits for it or the end of the context. Once the kernel has
// ended it, after is called with its value, and whether await returns that. A request that is gone goes on
// without its caller.
func await(ctx context.Context, w work, after func(value int64, isTaken bool)) (v int64, isGone bool, err error) {
	q := getQueue()
	if q == nil {
		return awaitThread(ctx, w, after)
	}
	if w.file != nil {
		if errno := w.file.register(); errno < 0 {
			after(errno, true)
			return 0, false, syscall.Errno(-errno)
		}
	}
	queued.Add(1)
	queuedCount.Add(1)
	raceReleased()
	r := q.get(w)
	r.after = after
	q.begin(r)
	select {
	case <-r.done:
	case <-ctx.Done():
		r.isCanceled.Store(true)
		// A ticket of a request that has ended names nothing.
		if ticket := r.ticket.Load(); ticket != 0 {
			C.sakia_queue_cancel(q.c, C.uint64_t(ticket))
		}
		if r.owner.CompareAndSwap(ownedByCaller, abandoned) {
			abandonedCount.Add(1)
			return 0, true, ctx.Err()
		}
		<-r.done
	}
	value, _ := r.finish(q, true)
	if value >= 0 {
		return value, false, nil
	}
	if err := ctx.Err(); err != nil && value == -int64(syscall.ECANCELED) {
		return 0, false, err
	}
	return 0, false, syscall.Errno(-value)
}

// The file's part of the queue.
type link struct {
	mu sync.Mutex
	// What the queue knows the descriptor by, once it was used there.
	handle  atomic.Pointer[handle]
	cleanup runtime.Cleanup
}

type handle struct{ c *C.sakia_file }

// register makes the file known to the queue. The descriptor is lent: it stays open until the queue has
// ended its uses.
func (f *File) register() int64 {
	if f.link.handle.Load() != nil {
		return 0
	}
	f.link.mu.Lock()
	defer f.link.mu.Unlock()
	if f.link.handle.Load() != nil {
		return 0
	}
	h := new(handle)
	if errno := C.sakia_file_lend(C.int32_t(f.fd), &h.c); errno < 0 {
		return int64(errno)
	}
	// Keeps os.File from closing a forgotten file before the queue has ended its uses.
	type lent struct {
		c  *C.sakia_file
		os *os.File
	}
	f.link.cleanup = runtime.AddCleanup(f, func(it lent) {
		go func() {
			endUses(it.c)
			it.os.Close()
		}()
	}, lent{h.c, f.os})
	f.link.handle.Store(h)
	return 0
}

func endUses(c *C.sakia_file) {
	perform(work{code: opClose, handle: c})
	C.sakia_file_unref(c)
}

// unlink ends the queue's uses of the descriptor.
func (f *File) unlink() {
	if h := f.link.handle.Load(); h != nil {
		f.link.cleanup.Stop()
		endUses(h.c)
	}
}

func errnoOf(value int64) error {
	if value < 0 {
		return syscall.Errno(-value)
	}
	return nil
}

func (f *File) transferQueued(code uint32, b []byte, off int64) (int, error) {
	for {
		value, _ := perform(work{code: code, file: f, buf: b, off: off})
		if value != -int64(syscall.EINTR) {
			return int(max(value, 0)), errnoOf(value)
		}
	}
}

func (f *File) syncQueued(dataOnly bool) error {
	w := work{code: opSync, file: f}
	if dataOnly {
		w.flags = 1
	}
	value, _ := perform(w)
	return errnoOf(value)
}

func (f *File) truncateQueued(size int64) error {
	value, _ := perform(work{code: opTruncate, file: f, off: size})
	return errnoOf(value)
}

// statQueued has the attributes fetched, from a server perhaps; afterwards they are asked for without a wait.
func (f *File) statQueued() error {
	value, _ := perform(work{code: opStat, file: f, buf: make([]byte, 256)})
	return errnoOf(value)
}

// openQueued opens a file by the queue.
func openQueued(name string, flag int, perm fs.FileMode) (*File, error) {
	path, err := syscall.ByteSliceFromString(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	// An open of a FIFO waits for the other end, which may be the next call: each gets a thread, as in the os
	// package.
	if isFifo(path) {
		return openPlain(name, flag, perm)
	}
	mode := modeOf(perm)
	const temporary = 0x400000 // O_TMPFILE, without O_DIRECTORY
	if flag&(os.O_CREATE|temporary) == 0 {
		mode = 0 // others are refused
	}
	value, opened := perform(work{code: opOpen, path: path, mode: mode, flags: uint32(flag | syscall.O_CLOEXEC)})
	if value == -int64(syscall.EINVAL) {
		// openat2(2) knows the flags that open(2) ignores.
		return openPlain(name, flag, perm)
	}
	if value < 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.Errno(-value)}
	}
	fd := int(C.sakia_file_release(opened)) // no other has it
	if fd < 0 {
		C.sakia_file_unref(opened)
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.Errno(-fd)}
	}
	return adopt(fd, name, flag)
}

func isFifo(path []byte) bool {
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(unsafe.SliceData(path))
	status := make([]byte, 256)
	pins.Pin(unsafe.SliceData(status))
	value := C.sakia_try_stat(nil, (*C.char)(unsafe.Pointer(unsafe.SliceData(path))), 0,
		unsafe.Pointer(unsafe.SliceData(status)), C.size_t(len(status)))
	// `stx_mode` of `struct statx`.
	return value == 0 && binary.NativeEndian.Uint16(status[28:])&syscall.S_IFMT == syscall.S_IFIFO
}
