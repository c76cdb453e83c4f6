package sakia

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func newLog(t *testing.T, path string) *GroupCommit {
	t.Helper()
	f, err := OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	log, err := NewGroupCommit(f)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestLogHasAllRecords(t *testing.T) {
	inBothWays(t, func(t *testing.T) {
		checkLeaks(t)
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte("earlier\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		log := newLog(t, path)
		if log.End() != 8 {
			t.Fatal(log.End())
		}
		const writers, records = 32, 30
		var all sync.WaitGroup
		for writer := range writers {
			all.Add(1)
			go func() {
				defer all.Done()
				for i := range records {
					record := []byte(fmt.Sprintf("%d %d %s\n", writer, i, strings.Repeat("x", writer*i%300)))
					var off int64
					var err error
					if i%5 == 4 {
						if off, err = log.Append(record); err == nil {
							err = log.Commit()
						}
					} else {
						off, err = log.AppendDurable(record)
					}
					read := make([]byte, len(record))
					_, readErr := log.File().ReadAt(read, off)
					if err != nil || readErr != nil || !bytes.Equal(read, record) {
						t.Errorf("%q at %d: %q, %v, %v", record, off, read, err, readErr)
					}
				}
			}()
		}
		all.Wait()
		data, err := ReadFile(path)
		lines := bytes.Count(data, []byte("\n"))
		if err != nil || lines != writers*records+1 || int64(len(data)) != log.End() {
			t.Errorf("%d lines, %d bytes, %v", lines, len(data), err)
		}
		if log.Syncs() >= writers*records {
			t.Errorf("%d syncs", log.Syncs())
		}
	})
}

// Writers that come while a sync is held share the next one.
func TestWritersShareASync(t *testing.T) {
	disk := newDisk(t)
	log := newLog(t, filepath.Join(disk.Dir, "log"))
	disk.Server.HoldWrites()
	var all sync.WaitGroup
	appendOne := func() {
		all.Add(1)
		go func() {
			defer all.Done()
			if _, err := log.AppendDurable([]byte("record")); err != nil {
				t.Error(err)
			}
		}()
	}
	appendOne()
	eventually(t, "held", func() bool { return disk.Server.Held() > 0 })
	for range 100 {
		appendOne()
	}
	eventually(t, "joined", func() bool {
		log.mu.Lock()
		defer log.mu.Unlock()
		return log.next != nil && log.next.joined == 100
	})
	disk.Server.Release()
	all.Wait()
	if log.Syncs() != 2 {
		t.Errorf("%d syncs", log.Syncs())
	}
}

func TestFirstFailureOfALogIsFinal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := NewGroupCommit(f); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	f.Close()
	if _, err := NewGroupCommit(f); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	f, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log, err := NewGroupCommit(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Commit(); err != nil || log.Failure() != nil {
		t.Error(err)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Add(1)
		go func() {
			defer all.Done()
			if _, err := log.AppendDurable([]byte("x")); !errors.Is(err, syscall.EBADF) {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	for _, err := range []error{log.Commit(), log.Failure()} {
		if !errors.Is(err, syscall.EBADF) {
			t.Error(err)
		}
	}
	if _, err := log.Append([]byte("x")); !errors.Is(err, syscall.EBADF) {
		t.Error(err)
	}
}
