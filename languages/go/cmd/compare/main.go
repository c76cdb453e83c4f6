// Command compare measures sakia against os.File, in alternated rounds, and prints the medians of the ratios:
// of processor time per operation, and of the rate. Ratios of time below 1 and of rates above 1 are in favor
// of sakia.
//
//	go run ./cmd/compare -dir /a/directory/on/a/disk
package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"sakia.invalid/languages/go"
)

// file is what both have.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error
}

const (
	fileBytes = 64 << 20
	block     = 4096
)

var (
	dir    = flag.String("dir", ".", "a directory on the disk to measure")
	rounds = flag.Int("rounds", 9, "alternated rounds")
	span   = flag.Duration("span", 300*time.Millisecond, "the length of a measurement")
	only   = flag.String("only", "", "the name of the only row")
)

// A row is a way to use files: work does one operation.
type row struct {
	name       string
	goroutines int
	flags      int
	timeMax    float64
	rateMin    float64
	// Makes the operation of a goroutine.
	work func(f file, isSakia bool) func(number int) func() error
}

func main() {
	flag.Parse()
	path := filepath.Join(*dir, "sakia-compare")
	if err := fill(path); err != nil {
		fail(err)
	}
	defer os.Remove(path)
	if why := sakia.Why(); why != "" {
		fmt.Println("without a ring:", why)
	}
	rows := []row{
		{"hot 4 KiB ReadAt", 1, os.O_RDONLY, 1.05, 0, readAt},
		{"hot 4 KiB Read", 1, os.O_RDONLY, 0, 0, readAll},
		{"hot 64 KiB ReadAt", 1, os.O_RDONLY, 0, 0, readLong},
		{"hot 4 KiB ReadAt, 16 goroutines", 16, os.O_RDONLY, 0, 0, readAt},
		{"hot 4 KiB WriteAt", 1, os.O_RDWR, 0, 0, writeAt},
		{"open, hot 4 KiB ReadAt, close", 1, os.O_RDONLY, 0, 0, openAndRead(path)},
		{"direct 4 KiB, depth 1", 1, os.O_RDONLY | syscall.O_DIRECT, 1.10, 0, readAt},
		{"direct 4 KiB, 4 goroutines", 4, os.O_RDONLY | syscall.O_DIRECT, 0, 0, readAt},
		{"direct 4 KiB, 8 goroutines", 8, os.O_RDONLY | syscall.O_DIRECT, 0, 0, readAt},
		{"direct 4 KiB, 16 goroutines", 16, os.O_RDONLY | syscall.O_DIRECT, 0.75, 1.1, readAt},
		{"direct 4 KiB, 64 goroutines", 64, os.O_RDONLY | syscall.O_DIRECT, 0.45, 1.3, readAt},
		{"direct 4 KiB, 256 goroutines", 256, os.O_RDONLY | syscall.O_DIRECT, 0, 0, readAt},
		{"32 durable log writers", 32, os.O_RDWR, 0, 2, logWriter},
	}
	fmt.Printf("%-34s %10s %10s %8s %8s  %s\n", "", "os us", "sakia us", "time", "rate", "aims")
	for _, row := range rows {
		if *only == "" || *only == row.name {
			row.print(path)
		}
	}
	fmt.Printf("\n%+v\n", sakia.Stats())
}

func (r *row) print(path string) {
	var times, rates, theirs, ours []float64
	for range *rounds {
		a := r.measure(path, false)
		b := r.measure(path, true)
		theirs = append(theirs, a.micros)
		ours = append(ours, b.micros)
		times = append(times, b.micros/a.micros)
		rates = append(rates, b.rate/a.rate)
	}
	time, rate := median(times), median(rates)
	aims := ""
	if r.timeMax > 0 {
		aims += fmt.Sprintf("time <= %.2f: %v  ", r.timeMax, time <= r.timeMax)
	}
	if r.rateMin > 0 {
		aims += fmt.Sprintf("rate >= %.2f: %v", r.rateMin, rate >= r.rateMin)
	}
	fmt.Printf("%-34s %10.2f %10.2f %8.3f %8.3f  %s\n", r.name, median(theirs), median(ours), time, rate, aims)
}

type sample struct {
	// Of processor time per operation.
	micros float64
	// Operations per second.
	rate float64
}

func (r *row) measure(path string, isSakia bool) sample {
	var f file
	var err error
	if isSakia {
		f, err = sakia.OpenFile(path, r.flags, 0)
	} else {
		f, err = os.OpenFile(path, r.flags, 0)
	}
	if err != nil {
		fail(err)
	}
	defer f.Close()
	makeWork := r.work(f, isSakia)
	var (
		all     sync.WaitGroup
		counts  = make([]int, r.goroutines)
		begin   = time.Now()
		isOver  = func() bool { return time.Since(begin) > *span }
		cpuThen = processorTime()
	)
	for number := range r.goroutines {
		all.Add(1)
		go func() {
			defer all.Done()
			work := makeWork(number)
			count := 0
			// The clock is not read for each operation.
			for !isOver() {
				for range max(1, 64/r.goroutines) {
					if err := work(); err != nil {
						fail(err)
					}
					count++
				}
			}
			counts[number] = count
		}()
	}
	all.Wait()
	cpu, wall := processorTime()-cpuThen, time.Since(begin)
	sum := 0
	for _, count := range counts {
		sum += count
	}
	return sample{float64(cpu.Nanoseconds()) / 1000 / float64(sum), float64(sum) / wall.Seconds()}
}

func readAt(f file, _ bool) func(int) func() error {
	return func(number int) func() error {
		random := rand.New(rand.NewSource(int64(number)))
		memory := aligned(block)
		return func() error {
			_, err := f.ReadAt(memory, random.Int63n(fileBytes/block)*block)
			return err
		}
	}
}

func openAndRead(path string) func(file, bool) func(int) func() error {
	return func(_ file, isSakia bool) func(int) func() error {
		return func(int) func() error {
			memory := aligned(block)
			return func() error {
				var f file
				var err error
				if isSakia {
					f, err = sakia.Open(path)
				} else {
					f, err = os.Open(path)
				}
				if err != nil {
					return err
				}
				if _, err := f.ReadAt(memory, 0); err != nil {
					return err
				}
				return f.Close()
			}
		}
	}
}

func readLong(f file, _ bool) func(int) func() error {
	return func(number int) func() error {
		random := rand.New(rand.NewSource(int64(number)))
		memory := aligned(64 << 10)
		return func() error {
			_, err := f.ReadAt(memory, random.Int63n(fileBytes/(64<<10))*(64<<10))
			return err
		}
	}
}

func readAll(f file, _ bool) func(int) func() error {
	return func(int) func() error {
		memory := aligned(block)
		stream := f.(io.ReadSeeker)
		return func() error {
			_, err := stream.Read(memory)
			if err == io.EOF {
				_, err = stream.Seek(0, io.SeekStart)
			}
			return err
		}
	}
}

func writeAt(f file, _ bool) func(int) func() error {
	return func(number int) func() error {
		random := rand.New(rand.NewSource(int64(number)))
		memory := aligned(block)
		return func() error {
			_, err := f.WriteAt(memory, random.Int63n(256)*block)
			return err
		}
	}
}

// Each writer makes a record of 100 bytes durable.
func logWriter(f file, isSakia bool) func(int) func() error {
	record := make([]byte, 100)
	if isSakia {
		log, err := sakia.NewGroupCommit(f.(*sakia.File))
		if err != nil {
			fail(err)
		}
		return func(int) func() error {
			return func() error {
				_, err := log.AppendDurable(record)
				return err
			}
		}
	}
	var mu sync.Mutex
	end := int64(fileBytes)
	return func(int) func() error {
		return func() error {
			mu.Lock()
			at := end
			end += int64(len(record))
			mu.Unlock()
			if _, err := f.WriteAt(record, at); err != nil {
				return err
			}
			return f.Sync()
		}
	}
}

func aligned(size int) []byte {
	whole := make([]byte, size+block)
	skip := -uintptr(unsafe.Pointer(&whole[0])) % block
	return whole[skip : skip+uintptr(size)]
}

func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	memory := make([]byte, 1<<20)
	for at := 0; at < fileBytes; at += len(memory) {
		rand.New(rand.NewSource(int64(at))).Read(memory)
		if _, err := f.Write(memory); err != nil {
			return err
		}
	}
	return f.Sync()
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "compare:", err)
	os.Exit(1)
}
