//go:build !cgo || !linux

package sakia

import (
	"context"
	"io/fs"
)

const (
	opRead = iota
	opWrite
	opSync
)

// Calls that may wait are plain ones, whatever their number.
func hasQueue() bool { return false }

// Why returns why files do not use a ring of io_uring, in English; an empty text if they do.
func Why() string { return "the program was built without cgo, so without libsakia" }

type work struct {
	code  uint32
	flags uint32
	file  *File
	buf   []byte
	off   int64
}

func await(ctx context.Context, w work, after func(value int64, isTaken bool)) (int64, bool, error) {
	return awaitThread(ctx, w, after)
}

type link struct{}

func (f *File) unlink() {}

// The rest is not called without a queue.
const noQueue = "sakia: there is no queue"

func openQueued(string, int, fs.FileMode) (*File, error)          { panic(noQueue) }
func (f *File) transferQueued(uint32, []byte, int64) (int, error) { panic(noQueue) }
func (f *File) syncQueued(bool) error                             { panic(noQueue) }
func (f *File) truncateQueued(int64) error                        { panic(noQueue) }
func (f *File) statQueued() error                                 { panic(noQueue) }
