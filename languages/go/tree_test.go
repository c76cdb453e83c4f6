package sakia

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// makeTree makes directories, files, links and a FIFO, and returns the number of files.
func makeTree(t *testing.T, dir string) int {
	t.Helper()
	for i, name := range []string{"a", "b/c", "b/d", "b/e/f"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, pattern(i*50_000), fs.FileMode(0o600+i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "b", "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	return 4
}

// listed returns paths with modes and contents.
func listed(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += string(data)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += target
		}
		all[path[len(dir):]] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTreesAreCopiedAndRemoved(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	files := makeTree(t, from)
	counts, err := CopyTree(context.Background(), from, to, TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if counts.Files != uint64(files) || counts.Symlinks != 1 || counts.Bytes != 300_000 || counts.Failures != 0 {
		t.Errorf("%+v", counts)
	}
	want, got := listed(t, from), listed(t, to)
	for path, text := range want {
		if got[path] != text {
			t.Errorf("%q differs", path)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d entries, not %d", len(got), len(want))
	}
	if hasQueue() {
		archive := TreeOptions{Archive: true, Verify: true, Durable: true, Threads: 2, Limit: 8}
		if _, err := CopyTree(context.Background(), from, filepath.Join(dir, "exact"), archive); err != nil {
			t.Error(err)
		}
	} else if _, err := CopyTree(context.Background(), from, to, TreeOptions{Archive: true}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	counts, err = RemoveTree(context.Background(), to)
	if err != nil || counts.Files != uint64(files) {
		t.Errorf("%+v, %v", counts, err)
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestTreesThatFail(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	var failed *TreeError
	if _, err := CopyTree(context.Background(), filepath.Join(dir, "none"), filepath.Join(dir, "to"),
		TreeOptions{}); !errors.As(err, &failed) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := RemoveTree(context.Background(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := RemoveTree(context.Background(), "with\x00zero"); err == nil {
		t.Error("it was removed")
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := RemoveTree(canceled, dir); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	from := filepath.Join(dir, "from")
	makeTree(t, from)
	for i := range 20 {
		// Canceled at any time, it ends, and a second one completes it.
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		to := filepath.Join(dir, "to")
		if _, err := CopyTree(ctx, from, to, TreeOptions{}); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v", i, err)
		}
		cancel()
		if _, err := os.Lstat(to); err == nil {
			if _, err := RemoveTree(context.Background(), to); err != nil {
				t.Error(err)
			}
		}
	}
}
