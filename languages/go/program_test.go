package sakia

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// api is what both have.
type api interface {
	fs.ReadDirFile
	io.ReaderAt
	io.WriterAt
	io.ReadWriteSeeker
	io.StringWriter
	Sync() error
	Truncate(int64) error
	Name() string
	Readdirnames(int) ([]string, error)
	Chmod(fs.FileMode) error
}

// crowded makes all calls that may wait go by the queue, as in a crowd.
func crowded(t testing.TB) {
	t.Helper()
	const others = 1 << 20
	plain.Add(others)
	t.Cleanup(func() { plain.Add(-others) })
}

// The seeds of a test: that of the environment, or so many.
func seeds(t testing.TB, quick, long int) []int64 {
	if text := os.Getenv("SAKIA_SEED"); text != "" {
		seed, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return []int64{seed}
	}
	count := long
	if testing.Short() {
		count = quick
	}
	all := make([]int64, count)
	for i := range all {
		all[i] = int64(i + 1)
	}
	return all
}

// Programs of random calls have the results, errors, positions and bytes that they have with os.File.
func TestRandomProgramsAreThoseOfOSFile(t *testing.T) {
	for _, way := range []string{"few", "crowd"} {
		t.Run(way, func(t *testing.T) {
			if way == "crowd" {
				needQueue(t)
				crowded(t)
			}
			for _, seed := range seeds(t, 80, 5000) {
				theirs := runProgram(t, seed, false)
				ours := runProgram(t, seed, true)
				for i := range theirs {
					if i >= len(ours) || theirs[i] != ours[i] {
						t.Fatalf("SAKIA_SEED=%d, step %d:\nos.File %s\nsakia   %s", seed, i, theirs[i], ours[min(i, len(ours)-1)])
					}
				}
			}
		})
	}
}

type program struct {
	t       *testing.T
	random  *rand.Rand
	dir     string
	file    api
	isSakia bool
	steps   []string
}

func runProgram(t *testing.T, seed int64, isSakia bool) []string {
	dir := t.TempDir()
	p := &program{t: t, random: rand.New(rand.NewSource(seed)), dir: dir, isSakia: isSakia}
	os.Mkdir(filepath.Join(dir, "directory"), 0o700)
	os.WriteFile(filepath.Join(dir, "directory", "entry"), nil, 0o600)
	os.WriteFile(filepath.Join(dir, "b"), pattern(40_000), 0o640)
	for range 60 {
		p.step()
	}
	if p.file != nil {
		p.file.Close()
	}
	for _, name := range []string{"a", "b"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		p.note("contents", bytes.Clone(data), err)
	}
	os.RemoveAll(dir)
	return p.steps
}

// note writes down what a step gave.
func (p *program) note(op string, values ...any) {
	text := op
	for _, value := range values {
		switch value := value.(type) {
		case error:
			closed := errors.Is(value, os.ErrClosed)
			text += fmt.Sprintf(" [%T %v closed=%v eof=%v]", value, value, closed, value == io.EOF)
		case []byte:
			text += fmt.Sprintf(" %d bytes %x", len(value), hash(value))
		default:
			text += fmt.Sprintf(" %v", value)
		}
	}
	p.steps = append(p.steps, strings.ReplaceAll(text, p.dir, "DIR"))
}

func hash(data []byte) (sum uint64) {
	for _, b := range data {
		sum = sum*0x100000001b3 ^ uint64(b)
	}
	return sum
}

func (p *program) open() {
	names := []string{"a", "a", "a", "b", "b", "b", "directory", "none/a", "a/b", "", "with\x00zero", "/dev/null",
		"/dev/zero", "/proc/self/status", "/proc/cpuinfo", "/dev/full"}
	name := names[p.random.Intn(len(names))]
	path := name
	if name != "" && name[0] != '/' {
		path = filepath.Join(p.dir, name)
	}
	flag := []int{os.O_RDONLY, os.O_RDWR, os.O_RDWR, os.O_WRONLY}[p.random.Intn(4)]
	for _, more := range []int{os.O_APPEND, os.O_CREATE, os.O_CREATE, os.O_EXCL, os.O_TRUNC, os.O_SYNC} {
		if p.random.Intn(5) == 0 {
			flag |= more
		}
	}
	perm := fs.FileMode(p.random.Intn(0o1000)) | 0o600
	var err error
	if p.isSakia {
		var file *File
		if file, err = OpenFile(path, flag, perm); err == nil {
			p.file = file
		}
	} else {
		var file *os.File
		if file, err = os.OpenFile(path, flag, perm); err == nil {
			p.file = file
		}
	}
	p.note(fmt.Sprintf("open %q %#x", name, flag), err)
}

// Reads of files of the kernel differ from one to the next, and those of /dev/zero end with a signal, which
// Go's runtime sends itself.
func (p *program) isConstant() bool {
	return !strings.HasPrefix(p.file.Name(), "/proc/") && p.file.Name() != "/dev/zero"
}

func (p *program) offset() int64 {
	switch p.random.Intn(12) {
	case 0:
		return math.MaxInt64 - int64(p.random.Intn(10_000))
	case 1:
		return -1 - int64(p.random.Intn(5))
	case 2:
		return 1 << 45
	}
	return int64(p.random.Intn(60_000))
}

func (p *program) memory() []byte {
	switch p.random.Intn(10) {
	case 0:
		return nil
	case 1:
		return []byte{}
	case 2:
		return make([]byte, 20_000+p.random.Intn(40_000))
	}
	return make([]byte, p.random.Intn(9000))
}

func (p *program) filled() []byte {
	memory := p.memory()
	p.random.Read(memory)
	return memory
}

// perhaps is a context, of which the results are as without.
func (p *program) perhaps(plain func() (int, error), with func(*File, context.Context) (int, error)) (int, error) {
	if file, ok := p.file.(*File); ok && p.random.Intn(2) == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		return with(file, ctx)
	} else if !ok {
		p.random.Intn(2)
	}
	return plain()
}

func (p *program) step() {
	if p.file == nil {
		p.open()
		return
	}
	switch choice := p.random.Intn(20); choice {
	case 0:
		p.note("close", p.file.Close())
	case 1:
		p.file.Close()
		p.open()
	case 2, 3, 4:
		memory, off := p.memory(), p.offset()
		if !p.isConstant() {
			return
		}
		n, err := p.perhaps(func() (int, error) { return p.file.ReadAt(memory, off) },
			func(f *File, ctx context.Context) (int, error) { return f.ReadAtContext(ctx, memory, off) })
		p.note(fmt.Sprintf("ReadAt %d %d", len(memory), off), n, err, memory)
	case 5, 6, 7:
		memory, off := p.filled(), p.offset()
		if p.file.Name() != filepath.Join(p.dir, "a") && off > 100_000 {
			return
		}
		n, err := p.perhaps(func() (int, error) { return p.file.WriteAt(memory, off) },
			func(f *File, ctx context.Context) (int, error) { return f.WriteAtContext(ctx, memory, off) })
		p.note(fmt.Sprintf("WriteAt %d %d", len(memory), off), n, err)
		if off > 100_000 {
			p.file.Truncate(100)
		}
	case 8, 9, 10:
		memory := p.memory()
		if !p.isConstant() {
			return
		}
		n, err := p.perhaps(func() (int, error) { return p.file.Read(memory) },
			func(f *File, ctx context.Context) (int, error) { return f.ReadContext(ctx, memory) })
		p.note(fmt.Sprintf("Read %d", len(memory)), n, err, memory)
	case 11, 12:
		memory := p.filled()
		n, err := p.perhaps(func() (int, error) { return p.file.Write(memory) },
			func(f *File, ctx context.Context) (int, error) { return f.WriteContext(ctx, memory) })
		p.note(fmt.Sprintf("Write %d", len(memory)), n, err)
	case 13, 14, 15:
		off, whence := p.offset(), []int{0, 0, 1, 2, 3, 4, 17, -1}[p.random.Intn(8)]
		if off > 1<<40 {
			off = 70_000
		}
		position, err := p.file.Seek(off, whence)
		p.note(fmt.Sprintf("Seek %d %d", off, whence), position, err)
	case 16:
		size := int64(p.random.Intn(50_000)) - 1000
		p.note(fmt.Sprintf("Truncate %d", size), p.file.Truncate(size))
	case 17:
		info, err := p.file.Stat()
		if err == nil {
			p.note("Stat", info.Name(), info.Mode(), info.Size()*int64(min(1, len(p.file.Name())-len("/proc/"))), err)
		} else {
			p.note("Stat", err)
		}
	case 18:
		if p.isSakia && p.random.Intn(2) == 0 {
			err := p.file.(*File).SyncContext(cancelable(p.t))
			p.note("Sync", err)
		} else {
			if !p.isSakia {
				p.random.Intn(2)
			}
			p.note("Sync", p.file.Sync())
		}
	default:
		names, err := p.file.Readdirnames(-1)
		// That of a closed file differs: os.File names the call of the system, and does not say ErrClosed.
		p.note("Readdirnames", names, err == nil)
		n, err := p.file.WriteString("string")
		p.note("WriteString", n, err)
	}
}
