package sakia

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// inBothWays runs a test with few waiters, and as in a crowd.
func inBothWays(t *testing.T, test func(t *testing.T)) {
	t.Run("few", test)
	t.Run("crowd", func(t *testing.T) {
		needQueue(t)
		crowded(t)
		test(t)
	})
}

func newFile(t testing.TB, data []byte, flag int) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path, flag, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestCloseWhileUsed(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		checkLeaks(t)
		data := pattern(1 << 20)
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		rounds := 300
		if testing.Short() {
			rounds = 30
		}
		for range rounds {
			f, err := OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			var closes atomic.Int32
			for worker := range 16 {
				all.Add(1)
				go func() {
					defer all.Done()
					memory := make([]byte, 5000)
					for i := range 200 {
						off := int64(worker*7919+i*pageSize) % 500_000
						var n int
						var err error
						switch (worker + i) % 8 {
						case 0:
							_, err = f.Seek(off, io.SeekStart)
							n = len(memory)
						case 1:
							n, err = f.Read(memory)
						case 2:
							_, err = f.Stat()
							n = len(memory)
						case 3:
							n, err = f.ReadAtContext(cancelable(t), memory, off)
						default:
							n, err = f.ReadAt(memory, off)
							if n == len(memory) && !bytes.Equal(memory, data[off:int(off)+n]) {
								t.Error("bytes of another file, or of another time")
							}
						}
						if errors.Is(err, os.ErrClosed) {
							break
						}
						if err != nil && err != io.EOF || err == nil && n == 0 {
							t.Errorf("%d, %v", n, err)
						}
					}
					if f.Close() == nil {
						closes.Add(1)
					}
				}()
			}
			// Descriptors of the same number.
			for range 10 {
				if other, err := os.Open("/dev/zero"); err == nil {
					other.Close()
				}
			}
			all.Wait()
			if closes.Load() != 1 {
				t.Fatalf("closed %d times", closes.Load())
			}
		}
	})
}

// Each byte is read by one of many that share the position, and each record is written whole.
func TestSharedPosition(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		checkLeaks(t)
		data := make([]byte, 30_000)
		for i := range data {
			data[i] = byte(i >> (i % 2 * 8))
		}
		for _, way := range []string{"plain", "context"} {
			f := newFile(t, data, os.O_RDONLY)
			var sum atomic.Int64
			var all sync.WaitGroup
			for range 8 {
				all.Add(1)
				go func() {
					defer all.Done()
					memory := make([]byte, 7)
					for {
						var n int
						var err error
						if way == "plain" {
							n, err = f.Read(memory)
						} else {
							n, err = f.ReadContext(cancelable(t), memory)
						}
						for _, b := range memory[:n] {
							sum.Add(int64(b))
						}
						if err != nil {
							if err != io.EOF {
								t.Error(err)
							}
							return
						}
					}
				}()
			}
			all.Wait()
			want := int64(0)
			for _, b := range data {
				want += int64(b)
			}
			if sum.Load() != want {
				t.Errorf("%s: the sum is %d, not %d", way, sum.Load(), want)
			}
			f.Close()
		}
		for _, flag := range []int{os.O_RDWR, os.O_RDWR | os.O_APPEND} {
			f := newFile(t, nil, flag)
			var all sync.WaitGroup
			for worker := range 8 {
				all.Add(1)
				go func() {
					defer all.Done()
					record := bytes.Repeat([]byte{byte('a' + worker)}, 100)
					for i := range 100 {
						write := f.Write
						if i%2 == 1 {
							write = func(b []byte) (int, error) { return f.WriteContext(cancelable(t), b) }
						}
						if n, err := write(record); n != len(record) || err != nil {
							t.Errorf("%d, %v", n, err)
						}
					}
				}()
			}
			all.Wait()
			written, err := ReadFile(f.Name())
			if err != nil || len(written) != 8*100*100 {
				t.Fatalf("%d bytes, %v", len(written), err)
			}
			for at := 0; at < len(written); at += 100 {
				if !bytes.Equal(written[at:at+100], bytes.Repeat(written[at:at+1], 100)) {
					t.Fatalf("flags %#x: the record at %d is torn", flag, at)
				}
			}
		}
	})
}

// A call that waits for the position ends with the file or its context, though the one that has it does not.
func TestWaitersForThePosition(t *testing.T) {
	disk := newDisk(t)
	path := filepath.Join(disk.Dir, "file")
	coldFile(t, path, pattern(1<<20))
	f, err := OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	disk.Server.HoldReads()
	results := make(chan error, 10)
	go func() {
		_, err := f.Read(aligned(pageSize))
		results <- err
	}()
	eventually(t, "held", func() bool { return disk.Server.Held() > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := f.ReadContext(ctx, aligned(pageSize)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	for _, call := range []func() error{
		func() error { _, err := f.Read(aligned(pageSize)); return err },
		func() error { _, err := f.Seek(0, io.SeekStart); return err },
	} {
		go func() { results <- call() }()
	}
	eventually(t, "waiting", func() bool {
		f.position.mu.Lock()
		defer f.position.mu.Unlock()
		return len(f.position.waiters) == 2
	})
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-results; !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
	disk.Server.Release()
	if err := <-results; err != nil {
		t.Errorf("the read that had begun: %v", err)
	}
}

func TestCollectionAndChildren(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		checkLeaks(t)
		defer debug.SetGCPercent(debug.SetGCPercent(1))
		data := pattern(1 << 20)
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var isOver atomic.Bool
		var helpers, all sync.WaitGroup
		for _, work := range []func(){
			runtime.GC,
			func() {
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
				}
			},
			func() { deepen(200) },
		} {
			helpers.Add(1)
			go func() {
				defer helpers.Done()
				for !isOver.Load() {
					work()
				}
			}()
		}
		for worker := range 32 {
			all.Add(1)
			go func() {
				defer all.Done()
				f, err := OpenFile(path, os.O_RDONLY, 0)
				if err != nil {
					t.Error(err)
					return
				}
				if worker%2 == 0 {
					f.isUntried.Store(true)
					f.misses.Store(missesMax)
					defer f.Close() // the others are forgotten
				}
				for i := range 60 {
					off := (worker*131 + i*7919) % (len(data) - 9000)
					// Fresh memory, some of which would be on the stack.
					var small [100]byte
					memory := small[:]
					if i%2 == 0 {
						memory = make([]byte, 9000)
					}
					if n, err := f.ReadAt(memory, int64(off)); n != len(memory) || err != nil {
						t.Errorf("%d, %v", n, err)
					}
					if !bytes.Equal(memory, data[off:off+len(memory)]) {
						t.Error("wrong bytes")
					}
				}
			}()
		}
		all.Wait()
		isOver.Store(true)
		helpers.Wait()
	})
}

// deepen makes the stack grow, and so move.
func deepen(depth int) int {
	var some [128]byte
	if depth == 0 {
		return int(some[5])
	}
	return deepen(depth-1) + int(some[depth%128])
}

// Children have none of the descriptors.
func TestChildrenInheritNothing(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		f := newFile(t, pattern(1000), os.O_RDWR)
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		for fd := range inheritable(t) {
			if !atStart[fd] {
				link, _ := os.Readlink(fmt.Sprint("/proc/self/fd/", fd))
				t.Errorf("descriptor %d, %s", fd, link)
			}
		}
	})
}

// The descriptors that the test's process has been given for its children.
var atStart = inheritable(nil)

func inheritable(t *testing.T) map[int]bool {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil && t != nil {
		t.Fatal(err)
	}
	all := map[int]bool{}
	for _, entry := range entries {
		fd, _ := strconv.Atoi(entry.Name())
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno == 0 && flags&syscall.FD_CLOEXEC == 0 {
			all[fd] = true
		}
	}
	return all
}

func TestZeroAndNilFiles(t *testing.T) {
	for _, f := range []*File{nil, {}} {
		for name, call := range map[string]func() error{
			"Close":    f.Close,
			"Sync":     f.Sync,
			"Datasync": f.Datasync,
			"Read":     func() error { _, err := f.Read(nil); return err },
			"ReadAt":   func() error { _, err := f.ReadAt(nil, 0); return err },
			"Write":    func() error { _, err := f.Write(nil); return err },
			"WriteAt":  func() error { _, err := f.WriteAt(nil, 0); return err },
			"Seek":     func() error { _, err := f.Seek(0, 0); return err },
			"Stat":     func() error { _, err := f.Stat(); return err },
			"Truncate": func() error { return f.Truncate(0) },
			"ReadDir":  func() error { _, err := f.ReadDir(0); return err },
			"Context":  func() error { _, err := f.ReadAtContext(cancelable(t), nil, 0); return err },
		} {
			if err := call(); err != os.ErrInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Opens that wait for each other: as many readers as may be, then their writers.
func TestFIFOs(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		checkLeaks(t)
		dir := t.TempDir()
		var all sync.WaitGroup
		for i := range 100 {
			path := filepath.Join(dir, fmt.Sprint(i))
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			all.Add(1)
			go func() {
				defer all.Done()
				if data, err := ReadFile(path); err != nil || string(data) != path {
					t.Errorf("%q, %v", data, err)
				}
			}()
		}
		for i := range 100 {
			path := filepath.Join(dir, fmt.Sprint(i))
			if err := WriteFile(path, []byte(path), 0); err != nil {
				t.Error(err)
			}
		}
		all.Wait()
	})
}

func TestFromOSFile(t *testing.T) {
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	theirs, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := FromOSFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	memory := make([]byte, 3)
	for i, file := range []io.Reader{ours, theirs, ours} {
		if n, err := file.Read(memory); n != 3 || err != nil || memory[0] != byte('0'+3*i) {
			t.Errorf("%d, %v, %s", n, err, memory)
		}
	}
	theirs.Close()
	if n, err := ours.ReadAt(memory, 0); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := FromOSFile(theirs); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	ours.Close()
}

// More requests than the queue accepts wait for room.
func TestManyBegun(t *testing.T) {
	needQueue(t)
	crowded(t)
	checkLeaks(t)
	f := newFile(t, pattern(pageSize), os.O_RDONLY)
	var all sync.WaitGroup
	count := 70_000 // more than 65,536
	if testing.Short() {
		count = 5000
	}
	for range min(count, goroutinesMax) {
		all.Add(1)
		go func() {
			defer all.Done()
			var one [1]byte
			if n, err := f.transferQueued(opRead, one[:], 5); n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}()
	}
	all.Wait()
}

func TestStatsCountEachWay(t *testing.T) {
	f := newFile(t, pattern(pageSize), os.O_RDWR)
	memory := make([]byte, 100)
	before := Stats()
	for range 10 {
		if _, err := f.ReadAt(memory, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteAt(memory, 0); err != nil {
		t.Fatal(err)
	}
	now := Stats()
	if got := now.NoWait - before.NoWait + now.Plain - before.Plain; got != 11 {
		t.Errorf("%d calls: %+v, %+v", got, before, now)
	}
	if !hasQueue() {
		return
	}
	crowded(t)
	f.Sync()
	if last := Stats(); last.Queued != now.Queued+1 || last.Submits != now.Submits+1 {
		t.Errorf("%+v, %+v", now, last)
	}
}

func TestHugeOffsets(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		f := newFile(t, pattern(pageSize), os.O_RDWR)
		theirs, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		for _, off := range []int64{math.MaxInt64, math.MaxInt64 - 9, 1 << 62, 1<<63 - pageSize, -1, math.MinInt64} {
			for _, size := range []int{0, 1, 10, pageSize, 20_000} {
				memory := make([]byte, size)
				a, errA := theirs.ReadAt(memory, off)
				b, errB := f.ReadAt(memory, off)
				c, errC := f.ReadAtContext(cancelable(t), memory, off)
				if a != b || a != c || fmt.Sprint(errA) != fmt.Sprint(errB) || fmt.Sprint(errA) != fmt.Sprint(errC) {
					t.Errorf("read %d at %d: %d %v, %d %v, %d %v", size, off, a, errA, b, errB, c, errC)
				}
				a, errA = theirs.WriteAt(memory, off)
				b, errB = f.WriteAt(memory, off)
				c, errC = f.WriteAtContext(cancelable(t), memory, off)
				if a != b || a != c || fmt.Sprint(errA) != fmt.Sprint(errB) || fmt.Sprint(errA) != fmt.Sprint(errC) {
					t.Errorf("write %d at %d: %d %v, %d %v, %d %v", size, off, a, errA, b, errB, c, errC)
				}
			}
		}
	})
}

// A read at the position gets all there is, though some of it is in memory and some is not.
func TestReadsOfWhatIsPartlyInMemory(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		data := pattern(3 << 20)
		path := filepath.Join(t.TempDir(), "file")
		for range 5 {
			coldFile(t, path, data)
			f, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			// The first pages, and some of the middle.
			for _, off := range []int64{0, 1 << 20, 5 << 18} {
				if _, err := f.ReadAt(make([]byte, 10), off); err != nil {
					t.Fatal(err)
				}
			}
			for i, read := range []func([]byte) (int, error){
				f.Read,
				func(b []byte) (int, error) { return f.ReadContext(cancelable(t), b) },
			} {
				if _, err := f.Seek(100, io.SeekStart); err != nil {
					t.Fatal(err)
				}
				memory := make([]byte, len(data))
				n, err := read(memory)
				if n != len(data)-100 || err != nil || !bytes.Equal(memory[:n], data[100:]) {
					t.Errorf("%d: %d bytes, %v", i, n, err)
				}
				if n, err := read(memory); n != 0 || err != io.EOF {
					t.Errorf("%d: %d bytes, %v", i, n, err)
				}
			}
			f.Close()
		}
	})
}

func TestUnusualOpens(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		checkLeaks(t)
		dir := t.TempDir()
		const temporary, onlyPath = 0x410000, 0x200000
		for _, flag := range []int{os.O_RDWR | temporary, onlyPath, os.O_RDONLY | syscall.O_DIRECTORY,
			os.O_RDONLY | 1<<30, os.O_RDONLY | os.O_CREATE, syscall.O_NOFOLLOW, onlyPath | os.O_RDWR | os.O_TRUNC} {
			theirs, errA := os.OpenFile(dir, flag, 0o640)
			ours, errB := OpenFile(dir, flag, 0o640)
			if fmt.Sprint(errA) != fmt.Sprint(errB) {
				t.Errorf("%#x: %v, %v", flag, errA, errB)
				continue
			}
			if errA != nil {
				continue
			}
			_, errA = theirs.Write([]byte("x"))
			_, errB = ours.Write([]byte("x"))
			if fmt.Sprint(errA) != fmt.Sprint(errB) {
				t.Errorf("write of %#x: %v, %v", flag, errA, errB)
			}
			a, errA := theirs.Stat()
			b, errB := ours.Stat()
			if errA != nil || errB != nil || a.Mode() != b.Mode() || a.Size() != b.Size() {
				t.Errorf("%#x: %v %v, %v %v", flag, a, errA, b, errB)
			}
			if fmt.Sprint(theirs.Sync()) != fmt.Sprint(ours.Sync()) {
				t.Errorf("sync of %#x", flag)
			}
			ours.Datasync()
			theirs.Close()
			if err := ours.Close(); err != nil {
				t.Error(err)
			}
			if err := ours.Datasync(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("datasync of %#x: %v", flag, err)
			}
		}
	})
}

// A file of one's own can be that of os.SameFile.
func TestSameFile(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		f := newFile(t, pattern(10), os.O_RDONLY)
		a, errA := f.Stat()
		b, errB := os.Stat(f.Name())
		if errA != nil || errB != nil || !os.SameFile(a, b) {
			t.Errorf("%v, %v", errA, errB)
		}
	})
}

// More than partMax, and what a cancellation in the midst of it leaves.
func TestLongContexts(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		checkLeaks(t)
		data := pattern(5*partMax + 123)
		f := newFile(t, nil, os.O_RDWR)
		if n, err := f.WriteContext(cancelable(t), data); n != len(data) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		memory := make([]byte, len(data)+10)
		if n, err := f.ReadAtContext(cancelable(t), memory, 0); n != len(data) || err != io.EOF || !bytes.Equal(memory[:n], data) {
			t.Fatalf("%d, %v", n, err)
		}
		for calls := 2; calls < 9; calls++ {
			ctx, cancel := context.WithCancel(context.Background())
			f.Seek(0, io.SeekStart)
			n, err := f.WriteContext(&atDone{ctx, cancel, calls}, data)
			if n%partMax != 0 && n != len(data) || (err == nil) != (n == len(data)) {
				t.Errorf("%d, %v", n, err)
			}
			if at, err := f.Seek(0, io.SeekCurrent); at != int64(n) || err != nil {
				t.Errorf("at %d after %d, %v", at, n, err)
			}
			cancel()
		}
	})
}

func TestWhyThereIsNoRing(t *testing.T) {
	if Why() == "" != (hasQueue() && os.Getenv("SAKIA_DRIVER") != "poll") {
		t.Errorf("%v, %q", hasQueue(), Why())
	}
}
