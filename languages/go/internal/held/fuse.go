// Package held has disks and file servers that answer when a test wants: a file system by the kernel's
// protocol of /dev/fuse, and ext4 on a loop device over one of its files.
//
// Sources: include/uapi/linux/fuse.h, fuse(4), loop(4).
package held

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The kernel's numbers of requests.
const (
	opLookup  = 1
	opForget  = 2
	opGetattr = 3
	opSetattr = 4
	opOpen    = 14
	opRead    = 15
	opWrite   = 16
	opStatfs  = 17
	opRelease = 18
	opFsync   = 20
	opInit    = 26
	opOpendir = 27
	opReaddir = 28
	opRelDir  = 29
	opFlush   = 25
	opIntr    = 36
	opForgets = 42
)

const (
	headerBytes = 40
	writeBytes  = 1 << 20
	firstNode   = 2
)

// A Server is a mounted directory of files. Reads and writes reach the server each, without the page cache.
//
// It is a process of its own, since one that waits for itself could not be killed. It ends with the test's.
type Server struct {
	// Where it is mounted.
	Dir string
	// Has the contents of the files.
	backing string

	mu      sync.Mutex
	process *exec.Cmd
	orders  io.WriteCloser
	answers *bufio.Reader
}

// In the environment of the server's process: the directory of its files.
const variable = "SAKIA_HELD_BACKING"

// Serve mounts files of these contents on the directory. They are kept below scratch.
func Serve(dir, scratch string, files map[string][]byte) (*Server, error) {
	s := &Server{Dir: dir, backing: filepath.Join(scratch, "backing")}
	if err := os.Mkdir(s.backing, 0o700); err != nil {
		return nil, err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(s.backing, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := syscall.Mount("sakia-held", dir, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "mount", Path: dir, Err: err}
	}
	device := os.NewFile(uintptr(fd), "/dev/fuse")
	defer device.Close()
	if err := s.start(device); err != nil {
		syscall.Unmount(dir, syscall.MNT_DETACH)
		return nil, err
	}
	return s, nil
}

func (s *Server) start(device *os.File) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s.process = exec.Command(program)
	s.process.Env = append(os.Environ(), variable+"="+s.backing)
	s.process.ExtraFiles = []*os.File{device}
	s.process.Stderr = os.Stderr
	if s.orders, err = s.process.StdinPipe(); err != nil {
		return err
	}
	answers, err := s.process.StdoutPipe()
	if err != nil {
		return err
	}
	s.answers = bufio.NewReader(answers)
	return s.process.Start()
}

// order has the server's process do something, and returns its answer.
func (s *Server) order(word string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.orders, word); err != nil {
		panic(err)
	}
	line, err := s.answers.ReadString('\n')
	if err != nil {
		panic(err)
	}
	answer, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		panic(err)
	}
	return answer
}

// HoldReads keeps reads unanswered until [Server.Release].
func (s *Server) HoldReads() { s.order("hold-reads") }

// HoldWrites keeps writes and syncs unanswered until [Server.Release].
func (s *Server) HoldWrites() { s.order("hold-writes") }

// HoldAll keeps all requests unanswered until [Server.Release].
func (s *Server) HoldAll() { s.order("hold-all") }

// Held returns the number of requests that wait for the release.
func (s *Server) Held() int { return s.order("held") }

// Release answers what was held, and all that follows.
func (s *Server) Release() { s.order("release") }

// Close ends the server and unmounts: requests that wait fail.
func (s *Server) Close() error {
	s.orders.Close()
	s.process.Wait()
	return syscall.Unmount(s.Dir, syscall.MNT_DETACH)
}

// The process that serves.
type server struct {
	device *os.File
	names  []string
	files  []*os.File

	mu         sync.Mutex
	holdsRead  bool
	holdsWrite bool
	holdsAll   bool
	held       [][]byte
}

func init() {
	backing := os.Getenv(variable)
	if backing == "" {
		return
	}
	// Registered with the poller, now that it is mounted.
	syscall.SetNonblock(3, true)
	s := &server{device: os.NewFile(3, "/dev/fuse")}
	entries, err := os.ReadDir(backing)
	if err != nil {
		panic(err)
	}
	for _, entry := range entries {
		file, err := os.OpenFile(filepath.Join(backing, entry.Name()), os.O_RDWR, 0)
		if err != nil {
			panic(err)
		}
		s.names = append(s.names, entry.Name())
		s.files = append(s.files, file)
	}
	go s.obey()
	s.serve()
	os.Exit(0)
}

// obey follows orders until there can be no more.
func (s *server) obey() {
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		answer := 0
		s.mu.Lock()
		var released [][]byte
		switch orders.Text() {
		case "hold-reads":
			s.holdsRead = true
		case "hold-writes":
			s.holdsWrite = true
		case "hold-all":
			s.holdsAll = true
		case "held":
			answer = len(s.held)
		case "release":
			released = s.held
			s.held, s.holdsRead, s.holdsWrite, s.holdsAll = nil, false, false, false
		}
		s.mu.Unlock()
		for _, request := range released {
			s.answer(request)
		}
		fmt.Println(answer)
	}
	os.Exit(0)
}

func (s *server) serve() {
	memory := make([]byte, writeBytes+8192)
	for {
		n, err := s.device.Read(memory)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EINTR) {
			continue // a request that was interrupted
		}
		if err != nil || n < headerBytes {
			return
		}
		request := append([]byte(nil), memory[:n]...)
		op := binary.NativeEndian.Uint32(request[4:])
		s.mu.Lock()
		isHeld := s.holdsRead && op == opRead || s.holdsWrite && (op == opWrite || op == opFsync) || s.holdsAll
		if isHeld {
			s.held = append(s.held, request)
		}
		s.mu.Unlock()
		if !isHeld {
			s.answer(request)
		}
	}
}

func (s *server) answer(request []byte) {
	op := binary.NativeEndian.Uint32(request[4:])
	unique := binary.NativeEndian.Uint64(request[8:])
	node := binary.NativeEndian.Uint64(request[16:])
	if op == opForget || op == opForgets || op == opIntr {
		return
	}
	body, errno := s.perform(op, node, request[headerBytes:])
	reply := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	reply = binary.NativeEndian.AppendUint32(reply, uint32(-int32(errno)))
	reply = binary.NativeEndian.AppendUint64(reply, unique)
	// It fails if the request was given up, or the mount has ended.
	s.device.Write(append(reply, body...))
}

// A message of the kernel's, under construction.
type message []byte

func (m *message) u16(values ...uint16) {
	for _, v := range values {
		*m = binary.NativeEndian.AppendUint16(*m, v)
	}
}

func (m *message) u32(values ...uint32) {
	for _, v := range values {
		*m = binary.NativeEndian.AppendUint32(*m, v)
	}
}

func (m *message) u64(values ...uint64) {
	for _, v := range values {
		*m = binary.NativeEndian.AppendUint64(*m, v)
	}
}

const validSeconds = 3600

func (s *server) attributes(m *message, node uint64) {
	size, mode := uint64(0), uint32(syscall.S_IFDIR|0o755)
	if node >= firstNode {
		mode = syscall.S_IFREG | 0o666
		if info, err := s.files[node-firstNode].Stat(); err == nil {
			size = uint64(info.Size())
		}
	}
	m.u64(node, size, (size+511)/512, 0, 0, 0)
	m.u32(0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
}

func (s *server) perform(op uint32, node uint64, body []byte) (message, syscall.Errno) {
	var m message
	switch op {
	case opInit:
		// Several reads at once, large writes, and direct ones that do not wait for each other.
		const flags = 1 | 1<<5 | 1<<15 | 1<<22
		m.u32(7, 31, binary.NativeEndian.Uint32(body[8:]), flags)
		m.u16(256, 192)
		m.u32(writeBytes, 1)
		m.u16(writeBytes/4096, 0)
		m.u32(0, 0)
		m.u16(make([]uint16, 12)...)
	case opLookup:
		for i, name := range s.names {
			if name == string(body[:len(body)-1]) {
				m.u64(uint64(i+firstNode), 0, validSeconds, validSeconds)
				m.u32(0, 0)
				s.attributes(&m, uint64(i+firstNode))
				return m, 0
			}
		}
		return nil, syscall.ENOENT
	case opGetattr, opSetattr:
		if op == opSetattr && binary.NativeEndian.Uint32(body)&(1<<3) != 0 {
			return nil, syscall.EOPNOTSUPP // the length
		}
		m.u64(validSeconds)
		m.u32(0, 0)
		s.attributes(&m, node)
	case opOpen:
		const directIO = 1
		m.u64(0)
		m.u32(directIO, 0)
	case opOpendir:
		m.u64(0, 0)
	case opRead:
		off, size := binary.NativeEndian.Uint64(body[8:]), binary.NativeEndian.Uint32(body[16:])
		m = make(message, size)
		n, _ := s.files[node-firstNode].ReadAt(m, int64(off))
		m = m[:n]
	case opWrite:
		off, size := binary.NativeEndian.Uint64(body[8:]), binary.NativeEndian.Uint32(body[16:])
		if _, err := s.files[node-firstNode].WriteAt(body[40:40+size], int64(off)); err != nil {
			return nil, syscall.EIO
		}
		m.u32(size, 0)
	case opStatfs:
		m.u64(make([]uint64, 5)...)
		m.u32(4096, 255, 4096, 0)
		m.u32(make([]uint32, 6)...)
	case opReaddir, opFsync, opFlush, opRelease, opRelDir:
	default:
		return nil, syscall.ENOSYS
	}
	return m, 0
}

// Data returns the contents of a file, as the server has them.
func (s *Server) Data(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.backing, name))
}
