package sakia

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
)

func TestFSIsAsFstestWants(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b/c", "b/d/e"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(path, []byte("contents of "+name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := fstest.TestFS(DirFS(dir), "a", "b/c", "b/d/e"); err != nil {
		t.Fatal(err)
	}
}
