package study

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// A Bench is a run of the testbench.
type Bench struct {
	Scheduler string
	// Goroutines that live at a time: each performs one operation.
	Threads int
	// Bytes of an operation.
	ReadSize, WriteSize int
	Reads, Writes       int
	// Where each operation begins.
	ReadOffset, WriteOffset int64
	Files                   int
	// The files' names; made below Path if there are none.
	Names []string
	Path  string
	// The part of all operations that are reads, if it is at least 0: it replaces Reads and Writes, whose sum
	// stays.
	Mix float64
	// Files have no bytes on the disk.
	Sparse bool
	Direct bool
	// Files are not in the page cache.
	Cold bool
	Seed int64
}

// Flags adds the testbench's flags to a set, by the study's names.
func (b *Bench) Flags(set *flag.FlagSet) {
	set.IntVar(&b.Threads, "threads", 2, "goroutines at a time")
	set.IntVar(&b.ReadSize, "rsize", 4096, "bytes of a read")
	set.IntVar(&b.WriteSize, "wsize", 4096, "bytes of a write")
	set.IntVar(&b.Reads, "nreads", 1000, "reads")
	set.IntVar(&b.Writes, "nwrites", 0, "writes")
	set.Int64Var(&b.ReadOffset, "roff", 0, "where each read begins; -1: anywhere in the file")
	set.Int64Var(&b.WriteOffset, "woff", 0, "where each write begins; -1: anywhere in the file")
	set.IntVar(&b.Files, "nfiles", 1, "files")
	set.Float64Var(&b.Mix, "mix", -1, "the part of reads among all operations, 0 to 1")
	set.StringVar(&b.Path, "path", ".", "the directory of new files")
	set.Func("files", "names of files to use, with commas", func(text string) error {
		b.Names = strings.Split(text, ",")
		return nil
	})
	set.BoolVar(&b.Sparse, "sparse", false, "files without bytes on the disk")
	set.BoolVar(&b.Direct, "direct", false, "O_DIRECT; sizes and offsets are rounded up to 4096")
	set.BoolVar(&b.Cold, "cold", false, "files that are not in the page cache")
	set.Int64Var(&b.Seed, "seed", 1, "of the order and the offsets")
}

// A Result is what a run gives.
type Result struct {
	Operations int
	// Of one operation.
	Mean, Deviation time.Duration
	// Of the whole run.
	Wall, Processor time.Duration
	Bytes           int64
	// Calls of the kernel.
	Trace map[string]Timing
}

const block = 4096

func roundUp(n int64) int64 { return (n + block - 1) / block * block }

// counts returns the numbers of reads and writes.
func (b *Bench) counts() (reads, writes int, err error) {
	if b.Mix < 0 {
		return b.Reads, b.Writes, nil
	}
	if b.Mix > 1 {
		return 0, 0, errors.New("a mix is from 0 to 1")
	}
	sum := b.Reads + b.Writes
	reads = int(math.Round(b.Mix * float64(sum)))
	return reads, sum - reads, nil
}

// Run performs the operations.
func (b Bench) Run() (*Result, error) {
	reads, writes, err := b.counts()
	if err != nil {
		return nil, err
	}
	if b.Threads < 1 || b.ReadSize < 0 || b.WriteSize < 0 {
		return nil, errors.New("a size or a number is too small")
	}
	if b.Direct {
		b.ReadSize, b.WriteSize = int(roundUp(int64(b.ReadSize))), int(roundUp(int64(b.WriteSize)))
		b.ReadOffset, b.WriteOffset = roundUp(b.ReadOffset), roundUp(b.WriteOffset)
	}
	size := roundUp(max(b.ReadOffset+int64(b.ReadSize), b.WriteOffset+int64(b.WriteSize), 1<<22))
	names := b.Names
	if len(names) == 0 {
		dir, err := os.MkdirTemp(b.Path, "sched")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		for i := range b.Files {
			name := filepath.Join(dir, fmt.Sprint(i))
			if err := Make(name, size, b.Sparse); err != nil {
				return nil, err
			}
			names = append(names, name)
		}
	}
	if b.Cold {
		for _, name := range names {
			if err := chill(name); err != nil {
				return nil, err
			}
		}
	}
	s, err := New(b.Scheduler)
	if err != nil {
		return nil, err
	}
	result, err := b.perform(s, names, size, reads, writes)
	return result, errors.Join(err, s.End())
}

func (b *Bench) perform(s Scheduler, names []string, size int64, reads, writes int) (*Result, error) {
	flags := os.O_RDWR
	if b.Direct {
		flags |= syscall.O_DIRECT
	}
	var files []File
	for _, name := range names {
		file, err := s.OpenFile(name, flags, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		files = append(files, file)
	}
	random := rand.New(rand.NewSource(b.Seed))
	isWrite := make([]bool, reads+writes)
	for i := range writes {
		isWrite[i] = true
	}
	random.Shuffle(len(isWrite), func(i, j int) { isWrite[i], isWrite[j] = isWrite[j], isWrite[i] })
	// A buffer belongs to one operation at a time.
	memory := make(chan []byte, b.Threads)
	for range b.Threads {
		memory <- Aligned(max(b.ReadSize, b.WriteSize, 1))
	}
	var (
		mu       sync.Mutex
		all      sync.WaitGroup
		sum      float64
		squares  float64
		bytes    int64
		failures error
	)
	begin, processor := time.Now(), processorTime()
	for i, isWrite := range isWrite {
		file := files[i%len(files)]
		length, off := b.ReadSize, b.ReadOffset
		if isWrite {
			length, off = b.WriteSize, b.WriteOffset
		}
		if off < 0 {
			off = random.Int63n(max(1, (size-int64(length))/block+1)) * block
		}
		// The tokens are the buffers.
		buffer := <-memory
		all.Add(1)
		go func() {
			defer all.Done()
			var n int
			var err error
			begin := time.Now()
			if isWrite {
				n, err = file.WriteAt(buffer[:length], off)
			} else {
				n, err = file.ReadAt(buffer[:length], off)
			}
			took := float64(time.Since(begin))
			memory <- buffer
			if err == io.EOF {
				err = nil // a short file
			}
			mu.Lock()
			sum += took
			squares += took * took
			bytes += int64(n)
			failures = errors.Join(failures, err)
			mu.Unlock()
		}()
	}
	all.Wait()
	count := float64(max(1, reads+writes))
	mean := sum / count
	return &Result{
		Operations: reads + writes,
		Mean:       time.Duration(mean),
		Deviation:  time.Duration(math.Sqrt(max(0, squares/count-mean*mean))),
		Wall:       time.Since(begin),
		Processor:  processorTime() - processor,
		Bytes:      bytes,
		Trace:      s.Trace(),
	}, failures
}

// Make makes a file of so many bytes, which are on the disk unless it is sparse.
func Make(name string, size int64, isSparse bool) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if isSparse {
		err = file.Truncate(size)
	} else {
		memory := make([]byte, 1<<20)
		rand.New(rand.NewSource(size)).Read(memory)
		for at := int64(0); at < size && err == nil; at += int64(len(memory)) {
			_, err = file.Write(memory[:min(int64(len(memory)), size-at)])
		}
	}
	return errors.Join(err, file.Sync(), file.Close())
}

// chill drops a file's pages.
func chill(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		return err
	}
	const dontNeed = 4
	if _, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, file.Fd(), 0, 0, dontNeed, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// Aligned returns memory for direct operations.
func Aligned(size int) []byte {
	whole := make([]byte, size+block)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % block
	return whole[skip : skip+uintptr(size)]
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
