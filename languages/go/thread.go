package sakia

import (
	"context"
	"sync/atomic"
	"syscall"
)

// awaitThread is await where there is no queue: on a goroutine, and so a thread, of its own.
func awaitThread(ctx context.Context, w work, after func(value int64, isTaken bool)) (int64, bool, error) {
	const (
		waiting = iota
		left
		ended
	)
	var owner atomic.Int32
	done := make(chan struct{})
	var v int64
	var failure error
	queued.Add(1)
	go func() {
		var n int
		var err error
		switch w.code {
		case opRead:
			n, err = plainRead(w.file.fd, w.buf, w.off)
		case opWrite:
			n, err = plainWrite(w.file.fd, w.buf, w.off)
		case opSync:
			err = plainSync(w.file.fd, w.flags != 0)
		}
		v, failure = int64(n), err
		if errno, ok := err.(syscall.Errno); ok {
			v = -int64(errno)
		}
		queued.Add(-1)
		if owner.CompareAndSwap(waiting, ended) {
			close(done)
		} else {
			after(v, false)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		if owner.CompareAndSwap(waiting, left) {
			abandonedCount.Add(1)
			return 0, true, ctx.Err()
		}
		<-done
	}
	after(v, true)
	return max(v, 0), false, failure
}
