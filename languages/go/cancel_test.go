package sakia

import (
	"bytes"
	"context"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// An atDone is a context that is canceled when a call asks for its channel so many times: a call with a
// context asks once before it begins, and once more when it waits.
type atDone struct {
	context.Context
	cancel context.CancelFunc
	left   int
}

func (c *atDone) Done() <-chan struct{} {
	if c.left--; c.left == 0 {
		c.cancel()
	}
	return c.Context.Done()
}

// A leak is what a test may not leave.
type leak struct {
	goroutines  int
	descriptors []string
}

func leaksNow(t testing.TB) leak {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	l := leak{goroutines: runtime.NumGoroutine()}
	for _, entry := range entries {
		link, _ := os.Readlink("/proc/self/fd/" + entry.Name())
		// The library and the runtime make events and rings when they first need them, and keep them.
		if !strings.HasPrefix(link, "anon_inode:") && !strings.HasSuffix(link, "/mountinfo") {
			l.descriptors = append(l.descriptors, link)
		}
	}
	return l
}

// checkLeaks makes the queue, and checks at the test's end that nothing more is left.
func checkLeaks(t *testing.T) {
	t.Helper()
	if hasQueue() {
		// The library's own descriptors.
		f := newFile(t, pattern(pageSize), os.O_RDONLY)
		if _, err := f.transferQueued(opRead, make([]byte, 1), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	before := leaksNow(t)
	t.Cleanup(func() {
		var now leak
		defer func() {
			if t.Failed() {
				t.Logf("before %+v, now %+v", before, now)
			}
		}()
		eventually(t, "free of leaks", func() bool {
			runtime.GC()
			now = leaksNow(t)
			return queued.Load() == 0 && pinned.Load() == 0 && tries.Load() == 0 &&
				len(now.descriptors) <= len(before.descriptors) && now.goroutines <= before.goroutines
		})
	})
}

// Contexts are canceled before, during and after the kernel's work.
func TestContextsCanceledAtRandom(t *testing.T) {
	checkLeaks(t)
	const (
		workers = 64
		region  = 4 * pageSize
	)
	calls := 1_000_000
	if testing.Short() {
		calls = 10_000
	}
	path := filepath.Join(t.TempDir(), "file")
	data := pattern(1 << 20)
	if err := os.WriteFile(path, append(bytes.Clone(data), make([]byte, workers*region)...), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Nothing is read at once.
	f.isUntried.Store(true)
	f.misses.Store(missesMax)
	var before, during, after, wrong atomic.Int64
	var all sync.WaitGroup
	for worker := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			random := rand.New(rand.NewSource(int64(worker)))
			mine := int64(len(data) + worker*region)
			// Versions that the region may have, after writes that were canceled.
			possible := []byte{0}
			for call := range calls / workers {
				ctx, cancel := context.WithCancel(context.Background())
				isBefore := false
				switch random.Intn(6) {
				case 0, 1:
					cancel()
					isBefore = true
				case 2, 3:
					ctx = &atDone{ctx, cancel, 2}
				case 4:
					time.AfterFunc(time.Duration(random.Intn(100))*time.Microsecond, cancel)
				}
				var n int
				var err error
				size := 1 + random.Intn(region)
				if random.Intn(4) > 0 {
					off := random.Intn(len(data) - region)
					memory := bytes.Repeat([]byte{'?'}, size)
					n, err = f.ReadAtContext(ctx, memory, int64(off))
					cancel()
					want := bytes.Repeat([]byte{'?'}, size)
					copy(want, data[off:off+n])
					if !bytes.Equal(memory, want) {
						wrong.Add(1)
						t.Errorf("worker %d, call %d: %d bytes at %d are wrong", worker, call, size, off)
					}
				} else {
					size = region
					version := byte(1 + random.Intn(250))
					written := bytes.Repeat([]byte{version}, region)
					n, err = f.WriteAtContext(ctx, written, mine)
					cancel()
					// The kernel may still write: other bytes by no means.
					for i := range written {
						written[i] = 255
					}
					switch {
					case isBefore:
					case err == nil && len(possible) == 1:
						possible[0] = version
					default:
						possible = append(possible, version)
					}
				}
				switch {
				case err == nil && n == size:
					after.Add(1)
				case !errors.Is(err, context.Canceled) || n != 0:
					wrong.Add(1)
					t.Errorf("worker %d, call %d: %d, %v", worker, call, n, err)
				case isBefore:
					before.Add(1)
				default:
					during.Add(1)
				}
			}
			// What was canceled may come late, so all that was ever written is possible.
			memory := make([]byte, region)
			if _, err := f.ReadAt(memory, mine); err != nil {
				t.Error(err)
			}
			for _, b := range memory {
				if !bytes.Contains(possible, []byte{b}) {
					wrong.Add(1)
					t.Errorf("worker %d: a byte %d that was never written", worker, b)
					break
				}
			}
		}()
	}
	all.Wait()
	t.Logf("canceled before %d, during %d, after %d the kernel's work; %+v", before.Load(), during.Load(), after.Load(), Stats())
	for _, count := range []int64{before.Load(), during.Load(), after.Load()} {
		if count < int64(calls)/5 && hasQueue() {
			t.Errorf("%d are less than a fifth of %d", count, calls)
		}
	}
}

// A pipe's reads end with their context, and lose no bytes.
func TestContextsOnPipes(t *testing.T) {
	checkLeaks(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	f, err := FromOSFile(r)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.Close()
	for i := range 100 {
		ctx, cancel := context.WithCancel(context.Background())
		timer := time.AfterFunc(time.Duration(i)*10*time.Microsecond, cancel)
		if n, err := f.ReadContext(ctx, make([]byte, 10)); n != 0 || !errors.Is(err, context.Canceled) {
			t.Fatalf("%d, %v", n, err)
		}
		timer.Stop()
		if _, err := w.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		memory := make([]byte, 10)
		if n, err := f.ReadContext(cancelable(t), memory); n != 1 || err != nil || memory[0] != byte(i) {
			t.Fatalf("%d, %v", n, err)
		}
	}
}

// A read that waits keeps no write of the same file from its way.
func TestContextsInBothDirections(t *testing.T) {
	checkLeaks(t)
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var files [2]*File
	for i, fd := range pair {
		theirs := os.NewFile(uintptr(fd), "socket")
		if files[i], err = FromOSFile(theirs); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
	}
	answered := make(chan error, 1)
	go func() {
		memory := make([]byte, 10)
		n, err := files[0].ReadContext(cancelable(t), memory)
		if err == nil && string(memory[:n]) != "answer" {
			err = errors.New("not the answer")
		}
		answered <- err
	}()
	time.Sleep(time.Millisecond)
	if _, err := files[0].WriteContext(cancelable(t), []byte("question")); err != nil {
		t.Error(err)
	}
	memory := make([]byte, 10)
	if n, err := files[1].ReadContext(cancelable(t), memory); err != nil || string(memory[:n]) != "question" {
		t.Errorf("%q, %v", memory[:n], err)
	}
	if _, err := files[1].WriteContext(cancelable(t), []byte("answer")); err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	// A close ends the wait, as that of os.File.
	go func() {
		_, err := files[0].ReadContext(cancelable(t), memory)
		answered <- err
	}()
	time.Sleep(time.Millisecond)
	files[0].Close()
	if err := <-answered; !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	files[1].Close()
}
