// Command sched is the testbench of the study of disk schedulers in Go: it performs reads and writes by one
// scheduler or all of them, and prints what an operation took.
//
//	go run ./cmd/sched -scheduler all -threads 16 -nreads 10000 -roff -1 -direct -path /a/disk
//	go run ./cmd/sched -figure 4 -path /a/disk
//
// The figures are those of the study: 4 has buffered reads of two goroutines by size; 5 how long the calls of
// AIO take then; 6 direct reads of one goroutine by size.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"sakia.invalid/languages/go/internal/study"
)

var sizes = []int{1000, 10_000, 100_000, 1_000_000, 10_000_000}

func main() {
	var bench study.Bench
	bench.Flags(flag.CommandLine)
	scheduler := flag.String("scheduler", "all", fmt.Sprintf("one of %v, or all", study.Names))
	figure := flag.Int("figure", 0, "the study's figure, 4 to 6, in place of one run")
	rounds := flag.Int("rounds", 5, "alternated rounds of a figure")
	flag.Parse()
	names := study.Names
	if *scheduler != "all" {
		names = []string{*scheduler}
	}
	var err error
	switch *figure {
	case 0:
		err = runAll(bench, names)
	case 4, 5, 6:
		err = drawn(bench, names, *figure, *rounds)
	default:
		err = fmt.Errorf("no figure %d", *figure)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sched:", err)
		os.Exit(1)
	}
}

func runAll(bench study.Bench, names []string) error {
	fmt.Println("scheduler,operations,bytes,mean_ns,deviation_ns,wall_ns,processor_ns")
	for _, name := range names {
		bench.Scheduler = name
		r, err := bench.Run()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("%s,%d,%d,%d,%d,%d,%d\n", name, r.Operations, r.Bytes, r.Mean.Nanoseconds(),
			r.Deviation.Nanoseconds(), r.Wall.Nanoseconds(), r.Processor.Nanoseconds())
		for call, timing := range r.Trace {
			fmt.Printf("# %s: %d calls, mean %v\n", call, timing.Count, timing.Sum/time.Duration(max(1, timing.Count)))
		}
	}
	return nil
}

// drawn prints a figure as a table: microseconds of an operation, the median of the rounds.
func drawn(bench study.Bench, names []string, figure, rounds int) error {
	bench.Mix, bench.ReadOffset, bench.Writes = -1, -1, 0
	bench.Threads, bench.Direct = 2, false
	if figure == 6 {
		bench.Threads, bench.Direct = 1, true
	}
	columns := names
	if figure == 5 {
		columns = []string{"io_submit", "io_getevents"}
	}
	fmt.Printf("%-12s", "bytes")
	for _, column := range columns {
		fmt.Printf("%14s", column)
	}
	fmt.Println("   us")
	for _, size := range sizes {
		bench.ReadSize = size
		bench.Reads = max(20, min(1000, 50_000_000/size))
		samples := map[string][]time.Duration{}
		for range rounds {
			for _, name := range names {
				if figure == 5 && name != "aio" {
					continue
				}
				bench.Scheduler = name
				r, err := bench.Run()
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				samples[name] = append(samples[name], r.Mean)
				for call, timing := range r.Trace {
					samples[call] = append(samples[call], timing.Sum/time.Duration(max(1, timing.Count)))
				}
			}
		}
		fmt.Printf("%-12d", size)
		for _, column := range columns {
			slices.Sort(samples[column])
			middle := samples[column][len(samples[column])/2]
			fmt.Printf("%14.1f", float64(middle.Nanoseconds())/1000)
		}
		fmt.Println()
	}
	return nil
}
