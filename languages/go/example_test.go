package sakia_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sakia.invalid/languages/go"
)

func ExampleFile() {
	dir, _ := os.MkdirTemp("", "sakia")
	defer os.RemoveAll(dir)
	f, err := sakia.Create(filepath.Join(dir, "table"))
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("block"), 4096); err != nil {
		panic(err)
	}
	// It returns after a second, even if the disk does not answer.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	block := make([]byte, 5)
	n, err := f.ReadAtContext(ctx, block, 4096)
	fmt.Println(n, err, string(block))
	// Output: 5 <nil> block
}

func ExampleGroupCommit() {
	dir, _ := os.MkdirTemp("", "sakia")
	defer os.RemoveAll(dir)
	f, err := sakia.Create(filepath.Join(dir, "log"))
	if err != nil {
		panic(err)
	}
	defer f.Close()
	log, err := sakia.NewGroupCommit(f)
	if err != nil {
		panic(err)
	}
	var writers sync.WaitGroup
	for range 100 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			if _, err := log.AppendDurable([]byte("record\n")); err != nil {
				panic(err)
			}
		}()
	}
	writers.Wait()
	fmt.Println(log.End(), log.Syncs() <= 100)
	// Output: 700 true
}
