//go:build cgo && linux

package sakia

import (
	"bytes"
	"os"
	"sync"
	"testing"
)

// A queue that is full accepts what it refused when it has room again.
func TestFullQueue(t *testing.T) {
	needQueue(t)
	q := new(queue)
	q.start(2)
	if q.c == nil {
		t.Fatal(q.why)
	}
	data := pattern(1 << 20)
	f := newFile(t, data, os.O_RDONLY)
	if errno := f.register(); errno < 0 {
		t.Fatal(errno)
	}
	var all sync.WaitGroup
	for i := range 1000 {
		all.Add(1)
		queued.Add(1)
		go func() {
			defer all.Done()
			memory := make([]byte, 1000)
			off := i * 1000
			r := q.get(work{code: opRead, file: f, buf: memory, off: int64(off)})
			q.begin(r)
			<-r.done
			if n, _ := r.finish(q, true); n != 1000 || !bytes.Equal(memory, data[off:off+1000]) {
				t.Errorf("%d", n)
			}
		}()
	}
	all.Wait()
	// One that is refused for good has its reason, and those behind it go on.
	for _, code := range []uint32{12345, opRead} {
		queued.Add(1)
		r := q.get(work{code: code, file: f, buf: make([]byte, 10)})
		q.begin(r)
		<-r.done
		if n, _ := r.finish(q, true); (n == 10) != (code == opRead) || n == 0 {
			t.Errorf("%d: %d", code, n)
		}
	}
}
