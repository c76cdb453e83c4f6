package sakia

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"sakia.invalid/languages/go/internal/held"
)

// A hang is a failure after so long.
const patience = time.Minute

// cannot skips a test that this machine cannot make. With SAKIA_DENY_SKIPS=1 that is a failure, unless its
// name is in SAKIA_GO_SKIPS.
func cannot(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("SAKIA_DENY_SKIPS") == "1" && !strings.Contains(os.Getenv("SAKIA_GO_SKIPS"), t.Name()) {
		t.Fatalf("a skip that is not in SAKIA_GO_SKIPS: %v", why)
	}
	t.Skip(why)
}

func needQueue(t *testing.T) {
	t.Helper()
	if !hasQueue() {
		t.Skip("without a queue: ", Why())
	}
}

func newDisk(t *testing.T) *held.Disk {
	t.Helper()
	disk, err := held.NewDisk(t.TempDir(), 64<<20)
	if err != nil {
		cannot(t, err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	return disk
}

func newServer(t *testing.T, files map[string][]byte) *held.Server {
	t.Helper()
	server, err := held.Serve(t.TempDir(), t.TempDir(), files)
	if err != nil {
		cannot(t, err)
	}
	t.Cleanup(func() {
		server.Release()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func threads(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// kinds returns the threads by name and by where they sleep.
func kinds() map[string]int {
	all := map[string]int{}
	entries, _ := os.ReadDir("/proc/self/task")
	for _, entry := range entries {
		comm, _ := os.ReadFile("/proc/self/task/" + entry.Name() + "/comm")
		wchan, _ := os.ReadFile("/proc/self/task/" + entry.Name() + "/wchan")
		all[strings.TrimSpace(string(comm))+" "+string(wchan)]++
	}
	return all
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > patience {
			var stacks strings.Builder
			pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			t.Fatalf("not %s in time: %+v\n%s", what, Stats(), stacks.String())
		}
	}
}

// pattern returns bytes of which no two pages are equal.
func pattern(size int) []byte {
	data := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		word := (uint64(i)/8 + 1) * 0x9e3779b97f4a7c15
		for j := range 8 {
			data[i+j] = byte(word >> (8 * j))
		}
	}
	return data
}

func aligned(size int) []byte {
	whole := make([]byte, size+pageSize)
	skip := -uintptr(unsafe.Pointer(&whole[0])) % pageSize
	return whole[skip : skip+uintptr(size)]
}

// coldFile makes a file whose bytes are on the disk only.
func coldFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := held.Chill(file); err != nil {
		t.Fatal(err)
	}
}

func crowd() int {
	if testing.Short() {
		return 2000
	}
	return min(10_000, goroutinesMax)
}

// The study's aim: goroutines that wait for a disk are no threads.
func TestCrowdOnAHeldDiskIsFewThreads(t *testing.T) {
	needQueue(t)
	for _, direct := range []int{0, syscall.O_DIRECT} {
		t.Run(fmt.Sprintf("flags=%#x", direct), func(t *testing.T) {
			disk := newDisk(t)
			path := filepath.Join(disk.Dir, "file")
			data := pattern(16 << 20)
			coldFile(t, path, data)
			f, err := OpenFile(path, os.O_RDONLY|direct, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			before := threads(t)
			disk.Server.HoldReads()
			var all sync.WaitGroup
			var wrong atomic.Int64
			for i := range crowd() {
				all.Add(1)
				go func() {
					defer all.Done()
					memory := aligned(pageSize)
					off := i * pageSize % len(data)
					n, err := f.ReadAt(memory, int64(off))
					if n != pageSize || err != nil || string(memory) != string(data[off:off+pageSize]) {
						wrong.Add(1)
						t.Logf("%d: %d %v", off, n, err)
					}
				}()
			}
			eventually(t, "all under way", func() bool {
				return int(plain.Load()+queued.Load()+tries.Load()) == crowd() && disk.Server.Held() > 0
			})
			time.Sleep(300 * time.Millisecond)
			now := threads(t)
			t.Logf("%d goroutines wait, %d threads before, %d now; the disk has %d reads", crowd(), before, now,
				disk.Server.Held())
			t.Log(kinds())
			disk.Server.Release()
			all.Wait()
			if now-before > 16 {
				t.Errorf("%d threads more", now-before)
			}
			if wrong.Load() != 0 {
				t.Errorf("%d wrong results", wrong.Load())
			}
		})
	}
}

// The most threads of libsakia for calls that may never end.
const elasticMax = 64

func TestServerThatDoesNotAnswer(t *testing.T) {
	needQueue(t)
	data := pattern(1 << 20)
	server := newServer(t, map[string][]byte{"file": data})
	f, err := Open(filepath.Join(server.Dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	healthy := filepath.Join(t.TempDir(), "healthy")
	if err := os.WriteFile(healthy, data, 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := OpenFile(healthy, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	before := threads(t)
	server.HoldReads()
	var all sync.WaitGroup
	for i := range crowd() {
		all.Add(1)
		go func() {
			defer all.Done()
			memory := make([]byte, pageSize)
			off := i * pageSize % len(data)
			if n, err := f.ReadAt(memory, int64(off)); n != pageSize || err != nil {
				t.Errorf("%d: %d %v", off, n, err)
			}
		}()
	}
	eventually(t, "all under way", func() bool {
		return int(plain.Load()+queued.Load()+tries.Load()) == crowd() && server.Held() > 0
	})
	time.Sleep(300 * time.Millisecond)
	now := threads(t)
	t.Logf("%d threads before, %d now; the server has %d reads", before, now, server.Held())
	if now-before > elasticMax+8 {
		t.Errorf("%d threads more", now-before)
	}
	// Contexts return, also of what the queue has not begun.
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if n, err := f.ReadAtContext(ctx, make([]byte, pageSize), 0); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d %v", n, err)
	}
	// Other files: by the queue, which is what a crowd would use.
	for range 100 {
		memory := make([]byte, pageSize)
		if n, err := other.transferQueued(opRead, memory, pageSize); n != pageSize || err != nil {
			t.Fatalf("%d %v", n, err)
		}
		if n, err := other.ReadAt(memory, 0); n != pageSize || err != nil {
			t.Fatalf("%d %v", n, err)
		}
	}
	if err := other.Sync(); err != nil {
		t.Error(err)
	}
	// Close does not wait for the calls that have begun.
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	server.Release()
	all.Wait()
}

// A canceled read does not write to the slice, and a canceled write does not write what the slice has later.
func TestCanceledCallsLeaveTheSlice(t *testing.T) {
	disk := newDisk(t)
	path := filepath.Join(disk.Dir, "file")
	data := pattern(1 << 20)
	coldFile(t, path, data)
	f, err := OpenFile(path, os.O_RDWR|syscall.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	disk.Server.HoldReads()
	disk.Server.HoldWrites()
	forget := func(call func(context.Context) (int, error)) {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		then := queued.Load()
		ended := make(chan error, 1)
		go func() {
			n, err := call(ctx)
			if n != 0 {
				t.Errorf("%d bytes", n)
			}
			ended <- err
		}()
		// The loop device has one request at a time served.
		eventually(t, "held", func() bool { return queued.Load() > then && disk.Server.Held() > 0 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	readInto := make([]byte, pageSize)
	forget(func(ctx context.Context) (int, error) { return f.ReadAtContext(ctx, readInto, pageSize) })
	position := make([]byte, pageSize)
	forget(func(ctx context.Context) (int, error) { return f.ReadContext(ctx, position) })
	if now, err := f.Seek(0, io.SeekCurrent); now != 0 || err != nil {
		t.Errorf("the position is %d, %v", now, err)
	}
	written := []byte(strings.Repeat("a", pageSize))
	forget(func(ctx context.Context) (int, error) { return f.WriteAtContext(ctx, written, 4*pageSize) })
	for i := range pageSize {
		readInto[i], position[i], written[i] = 'b', 'b', 'b'
	}
	disk.Server.Release()
	eventually(t, "ended", func() bool { return queued.Load() == 0 })
	if want := strings.Repeat("b", pageSize); string(readInto) != want || string(position) != want {
		t.Error("the kernel wrote to a slice of a canceled call")
	}
	memory := make([]byte, pageSize)
	if _, err := f.ReadAtContext(cancelable(t), memory, 4*pageSize); err != nil {
		t.Error(err)
	}
	if strings.Contains(string(memory), "b") && string(memory) != string(data[4*pageSize:5*pageSize]) {
		t.Error("bytes of after the cancellation were written")
	}
}

func cancelable(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

// A server that answers nothing holds few threads in opens and closes, too.
func TestServerThatAnswersNothing(t *testing.T) {
	needQueue(t)
	server := newServer(t, map[string][]byte{"file": pattern(pageSize), "other": nil})
	path := filepath.Join(server.Dir, "file")
	var open []*File
	for range 200 {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	before := threads(t)
	server.HoldAll()
	var all sync.WaitGroup
	var ended atomic.Int32
	do := func(call func() error) {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := call(); err != nil {
				t.Error(err)
			}
			ended.Add(1)
		}()
	}
	for _, f := range open {
		do(f.Close)
		do(func() error {
			f, err := Open(path)
			if err != nil {
				return err
			}
			return f.Close()
		})
	}
	eventually(t, "held", func() bool { return server.Held() > elasticMax })
	time.Sleep(100 * time.Millisecond)
	now := threads(t)
	t.Logf("%d threads before, %d now; the server has %d requests", before, now, server.Held())
	if now-before > elasticMax+quickMax+remoteClosesMax+8 {
		t.Errorf("%d threads more: %v", now-before, kinds())
	}
	// Other files.
	local := newFile(t, pattern(pageSize), os.O_RDWR)
	again, err := Open(local.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []func() error{local.Sync, local.Close, again.Close} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	if ended.Load() != 0 {
		t.Errorf("%d ended", ended.Load())
	}
	server.Release()
	all.Wait()
}
