package study

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sakia.invalid/languages/go/internal/held"
)

// The faults of the study's own program, by number and name, which none of the schedulers here has.

const patience = time.Minute

// each runs a test with each scheduler.
func each(t *testing.T, test func(t *testing.T, s Scheduler)) {
	for _, name := range Names {
		t.Run(name, func(t *testing.T) {
			s, err := New(name)
			if err != nil {
				t.Fatal(err)
			}
			test(t, s)
			if err := s.End(); err != nil {
				t.Error(err)
			}
		})
	}
}

// data returns bytes that say where they are.
func data(size int) []byte {
	all := make([]byte, size)
	for i := range all {
		all[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return all
}

func newFile(t *testing.T, s Scheduler, contents []byte, flag int) File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, contents, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := s.OpenFile(name, flag, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatalf("not %s in time", what)
		}
	}
}

// Operations were not asked for again after the first events of their context.
func TestFault01EventsAfterTheFirstBatchAreTaken(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		contents := data(1 << 20)
		f := newFile(t, s, contents, os.O_RDONLY)
		var all sync.WaitGroup
		for i := range 10 * eventsMax {
			all.Add(1)
			go func() {
				defer all.Done()
				memory := make([]byte, 100)
				if _, err := f.ReadAt(memory, int64(i*100)); err != nil || !bytes.Equal(memory, contents[i*100:i*100+100]) {
					t.Errorf("%d: %v", i, err)
				}
			}()
		}
		all.Wait() // and no later operation helps them
	})
}

// Results below zero were numbers of bytes.
func TestFault02NegativeResultsAreErrors(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		f := newFile(t, s, data(100), os.O_WRONLY)
		if n, err := f.ReadAt(make([]byte, 10), 0); n != 0 || !errors.Is(err, syscall.EBADF) {
			t.Errorf("%d, %v", n, err)
		}
		full, err := s.OpenFile("/dev/full", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		// AIO refuses devices.
		if n, err := full.Write(make([]byte, 10)); n != 0 || !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// The end shared a sync.Once with the beginning, and so never happened.
func TestFault03TheSchedulerEnds(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	for range 3 { // and can begin again
		s, err := NewAIO(0)
		if err != nil {
			t.Fatal(err)
		}
		f := newFile(t, s, data(100), os.O_RDONLY)
		if _, err := f.ReadAt(make([]byte, 10), 0); err != nil {
			t.Error(err)
		}
		if err := s.End(); err != nil {
			t.Error(err)
		}
		if _, err := f.ReadAt(make([]byte, 10), 0); !errors.Is(err, errOver) {
			t.Error(err)
		}
		if err := s.End(); !errors.Is(err, errOver) {
			t.Error(err)
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_IO_DESTROY, s.context, 0, 0); errno != syscall.EINVAL {
			t.Errorf("the context is left: %v", errno)
		}
	}
	eventually(t, "without its goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// The mark of completion was a plain bool: the race detector looks at this one.
func TestFault04CompletionIsNoRace(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		f := newFile(t, s, data(10_000), os.O_RDWR)
		var all sync.WaitGroup
		for i := range 32 {
			all.Add(1)
			go func() {
				defer all.Done()
				memory := make([]byte, 100)
				for range 20 {
					if _, err := f.WriteAt(memory, int64(i*100)); err != nil {
						t.Error(err)
					}
					memory[0]++ // it is this goroutine's again
					if _, err := f.ReadAt(memory, int64(i*100)); err != nil {
						t.Error(err)
					}
					memory[1]++
				}
			}()
		}
		all.Wait()
	})
}

// Contexts that the system refused made the program ask for less where it should have asked for more, and
// the reverse.
func TestFault05ContextsAdaptDownwards(t *testing.T) {
	for grants := range 5000 {
		var asked []int
		got, err := adapt(contextWants, func(events int) error {
			asked = append(asked, events)
			if events > grants {
				return syscall.EAGAIN
			}
			return nil
		})
		if grants < contextMin {
			if err != syscall.EAGAIN || asked[len(asked)-1] != contextMin {
				t.Fatalf("%d: %v, %v", grants, asked, err)
			}
			continue
		}
		if err != nil || got > grants || got < contextMin || got < contextWants && got*2 < min(grants, contextWants)/2 {
			t.Fatalf("%d: %d of %v, %v", grants, got, asked, err)
		}
	}
	if _, err := adapt(100, func(int) error { return syscall.ENOSYS }); err != syscall.ENOSYS {
		t.Error(err)
	}
}

// Read and Write had the offset 0.
func TestFault06ReadAndWriteHaveAPosition(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		f := newFile(t, s, nil, os.O_RDWR)
		for _, part := range []string{"first ", "second ", "third"} {
			if n, err := f.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		if at, err := f.Seek(6, io.SeekStart); at != 6 || err != nil {
			t.Fatalf("%d, %v", at, err)
		}
		memory := make([]byte, 3)
		var read []byte
		for {
			n, err := f.Read(memory)
			read = append(read, memory[:n]...)
			if err != nil {
				if err != io.EOF || string(read) != "second third" {
					t.Fatalf("%q, %v", read, err)
				}
				break
			}
		}
	})
}

// One buffer for reads and one for writes was shared by all goroutines.
func TestFault07BuffersAreNotShared(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		const workers, size = 32, 5000
		f := newFile(t, s, make([]byte, workers*size), os.O_RDWR)
		var all sync.WaitGroup
		for worker := range workers {
			all.Add(1)
			go func() {
				defer all.Done()
				want := bytes.Repeat([]byte{byte(worker + 1)}, size)
				memory := make([]byte, size)
				for range 10 {
					if _, err := f.WriteAt(want, int64(worker*size)); err != nil {
						t.Error(err)
					}
					if _, err := f.ReadAt(memory, int64(worker*size)); err != nil || !bytes.Equal(memory, want) {
						t.Errorf("bytes of another goroutine, %v", err)
					}
				}
			}()
		}
		all.Wait()
	})
}

// The flag of the mix had two names, and its formula was wrong.
func TestFault08TheMixIsAsAskedFor(t *testing.T) {
	for _, c := range []struct {
		words         string
		reads, writes int
	}{
		{"-nreads 30 -nwrites 10", 30, 10},
		{"-nreads 30 -nwrites 10 -mix 0", 0, 40},
		{"-nreads 30 -nwrites 10 -mix 0.25", 10, 30},
		{"-nreads 30 -nwrites 10 -mix 0.9", 36, 4},
		{"-nreads 3 -nwrites 0 -mix 0.5", 2, 1},
		{"-nreads 30 -nwrites 10 -mix 1", 40, 0},
	} {
		var b Bench
		set := flag.NewFlagSet("sched", flag.ContinueOnError)
		b.Flags(set)
		if err := set.Parse(strings.Fields(c.words)); err != nil {
			t.Fatal(err)
		}
		if reads, writes, err := b.counts(); reads != c.reads || writes != c.writes || err != nil {
			t.Errorf("%s: %d and %d, %v", c.words, reads, writes, err)
		}
	}
	if _, _, err := (&Bench{Mix: 1.5}).counts(); err == nil {
		t.Error("a mix above 1")
	}
	// The run performs as many of each.
	for _, name := range Names {
		b := Bench{Scheduler: name, Threads: 3, ReadSize: 10, WriteSize: 1000, Reads: 20, Writes: 20, Mix: 0.25,
			Files: 2, Path: t.TempDir(), ReadOffset: -1, WriteOffset: -1}
		r, err := b.Run()
		if err != nil || r.Operations != 40 || r.Bytes != 10*10+30*1000 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// A short read was a panic.
func TestFault09ShortReadsAreResults(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		f := newFile(t, s, []byte("short"), os.O_RDONLY)
		memory := make([]byte, 100)
		if n, err := f.ReadAt(memory, 0); n != 5 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := f.ReadAt(memory, 5); n != 0 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := f.Read(memory); n != 5 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := f.Read(memory); n != 0 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
	})
	name := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(name, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, scheduler := range Names {
		b := Bench{Scheduler: scheduler, Threads: 2, ReadSize: 100, Reads: 4, Mix: -1, Names: []string{name}}
		if r, err := b.Run(); err != nil || r.Bytes != 20 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// Operations stayed in the map of those in flight.
func TestFault10NothingStaysInFlight(t *testing.T) {
	s, err := NewAIO(0)
	if err != nil {
		t.Fatal(err)
	}
	f := newFile(t, s, data(1000), os.O_RDONLY)
	for i := range 1000 {
		if _, err := f.ReadAt(make([]byte, 1), int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	left := len(s.inFlight)
	s.mu.Unlock()
	if left != 0 {
		t.Errorf("%d operations", left)
	}
	if err := s.End(); err != nil {
		t.Error(err)
	}
}

// A goroutine that waited kept a processor.
func TestFault11WaitersSleep(t *testing.T) {
	disk, err := held.NewDisk(t.TempDir(), 64<<20)
	if err != nil {
		if os.Getenv("SAKIA_DENY_SKIPS") == "1" && !strings.Contains(os.Getenv("SAKIA_GO_SKIPS"), t.Name()) {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	defer disk.Close()
	name := filepath.Join(disk.Dir, "file")
	if err := os.WriteFile(name, data(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, scheduler := range []string{"aio", "sakia"} {
		s, err := New(scheduler)
		if err != nil {
			t.Fatal(err)
		}
		if err := chill(name); err != nil {
			t.Fatal(err)
		}
		f, err := s.OpenFile(name, os.O_RDONLY|syscall.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		disk.Server.HoldReads()
		var all sync.WaitGroup
		const waiters = 50
		for i := range waiters {
			all.Add(1)
			go func() {
				defer all.Done()
				waitingRead(t, f, int64(i)*block)
			}()
		}
		eventually(t, "asleep", func() bool {
			stacks := make([]byte, 1<<20)
			asleep := 0
			for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
				header, _, _ := strings.Cut(stack, "\n")
				if strings.Contains(stack, "waitingRead") &&
					(strings.Contains(header, "[chan receive") || strings.Contains(header, "[syscall")) {
					asleep++
				}
			}
			return asleep == waiters
		})
		disk.Server.Release()
		all.Wait()
		if err := errors.Join(f.Close(), s.End()); err != nil {
			t.Error(err)
		}
	}
}

func waitingRead(t *testing.T, f File, off int64) {
	if _, err := f.ReadAt(Aligned(block), off); err != nil {
		t.Error(err)
	}
}

// The files that were read had no bytes on the disk, so no read was one.
func TestFault12SparseFilesAreAskedFor(t *testing.T) {
	for _, isSparse := range []bool{false, true} {
		name := filepath.Join(t.TempDir(), "file")
		if err := Make(name, 1<<20, isSparse); err != nil {
			t.Fatal(err)
		}
		var status syscall.Stat_t
		if err := syscall.Stat(name, &status); err != nil {
			t.Fatal(err)
		}
		if status.Size != 1<<20 || (status.Blocks*512 >= 1<<20) == isSparse {
			t.Errorf("sparse %v: %d bytes, %d blocks", isSparse, status.Size, status.Blocks)
		}
	}
}

// One of the three jobs (new operations, submissions, events) could keep the others from progress.
func TestFault13EachJobMakesProgress(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		f := newFile(t, s, data(1<<20), os.O_RDONLY)
		var isOver atomic.Bool
		var all sync.WaitGroup
		for i := range 16 {
			all.Add(1)
			go func() {
				defer all.Done()
				memory := make([]byte, 10)
				for !isOver.Load() {
					if _, err := f.ReadAt(memory, int64(i)); err != nil {
						t.Error(err)
						return
					}
				}
			}()
		}
		// The flood goes on until each of these has ended.
		for i := range 200 {
			ended := make(chan error, 1)
			go func() {
				_, err := f.ReadAt(make([]byte, 10), int64(i))
				ended <- err
			}()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("it is starved")
			}
		}
		isOver.Store(true)
		all.Wait()
	})
}

func TestFilesOfAll(t *testing.T) {
	each(t, func(t *testing.T, s Scheduler) {
		f := newFile(t, s, data(100), os.O_RDONLY)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		if _, err := s.OpenFile(filepath.Join(t.TempDir(), "none"), os.O_RDONLY, 0); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
	if _, err := New("none"); err == nil || fmt.Sprint(err) == "" {
		t.Error(err)
	}
}
