package study

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Of `include/uapi/linux/aio_abi.h`.
type iocb struct {
	data     uint64
	key      uint32
	rwFlags  uint32
	opcode   uint16
	priority int16
	fd       uint32
	buf      uint64
	bytes    uint64
	offset   int64
	reserved uint64
	flags    uint32
	eventFd  uint32
}

type ioEvent struct {
	data uint64
	obj  uint64
	res  int64
	res2 int64
}

const (
	opPread  = 0
	opPwrite = 1

	// The events that a context is made for, and the fewest that are of use.
	contextWants = 4096
	contextMin   = 10
	// Events that are taken at a time.
	eventsMax = 64
	// How long a wait for events lasts: an end is noticed after it.
	waitSpan = 100 * time.Millisecond
)

// An AIO is the study's scheduler: goroutines send operations, one goroutine submits all that have come, and
// one takes the events, so neither keeps the other from progress.
type AIO struct {
	context  uintptr
	events   int
	requests chan *operation
	ended    sync.WaitGroup

	mu sync.Mutex
	// By number. An operation is here from before its submission to its event.
	inFlight map[uint64]*operation
	next     uint64
	isOver   bool
	// Signaled when an operation is begun, and at the end.
	begun *sync.Cond
	trace map[string]Timing
	// For users that are sending.
	senders sync.RWMutex
}

type operation struct {
	control iocb
	pins    runtime.Pinner
	done    chan int64
}

// errOver is the result of an operation after the end.
var errOver = errors.New("the scheduler has ended")

// NewAIO makes a scheduler with a context for so many events; 0 for as many as the system gives.
func NewAIO(events int) (*AIO, error) {
	s := &AIO{
		requests: make(chan *operation, 1024),
		inFlight: map[uint64]*operation{},
		trace:    map[string]Timing{},
	}
	s.begun = sync.NewCond(&s.mu)
	wants := events
	if wants == 0 {
		wants = contextWants
	}
	got, err := adapt(wants, func(events int) error {
		begin := time.Now()
		_, _, errno := syscall.RawSyscall(syscall.SYS_IO_SETUP, uintptr(events), uintptr(unsafe.Pointer(&s.context)), 0)
		s.note("io_setup", begin)
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return nil, os.NewSyscallError("io_setup", err)
	}
	s.events = got
	s.ended.Add(2)
	go s.submit()
	go s.reap()
	return s, nil
}

// adapt asks for a context of fewer events, until one is granted.
func adapt(events int, setup func(events int) error) (int, error) {
	for {
		err := setup(events)
		if err == nil {
			return events, nil
		}
		if !errors.Is(err, syscall.EAGAIN) || events <= contextMin {
			return 0, err
		}
		events = max(events/2, contextMin)
	}
}

func (s *AIO) note(call string, begin time.Time) {
	took := time.Since(begin)
	s.mu.Lock()
	t := s.trace[call]
	s.trace[call] = Timing{t.Count + 1, t.Sum + took}
	s.mu.Unlock()
}

// Trace returns how long calls of the kernel took so far, by name.
func (s *AIO) Trace() map[string]Timing {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]Timing{}
	for call, timing := range s.trace {
		all[call] = timing
	}
	return all
}

// OpenFile opens a file.
func (s *AIO) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	return open(name, flag, perm, s.transfer)
}

// End ends it after the operations under way. A second time is an error.
func (s *AIO) End() error {
	s.senders.Lock()
	if s.isOver {
		s.senders.Unlock()
		return errOver
	}
	s.isOver = true
	close(s.requests)
	s.senders.Unlock()
	s.mu.Lock()
	s.begun.Broadcast()
	s.mu.Unlock()
	s.ended.Wait()
	if _, _, errno := syscall.Syscall(syscall.SYS_IO_DESTROY, s.context, 0, 0); errno != 0 {
		return os.NewSyscallError("io_destroy", errno)
	}
	return nil
}

// transfer performs an operation. Its goroutine sleeps meanwhile.
func (s *AIO) transfer(fd int, isWrite bool, b []byte, off int64) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	o := &operation{done: make(chan int64, 1)}
	memory := unsafe.SliceData(b)
	o.pins.Pin(memory)
	defer o.pins.Unpin()
	o.control = iocb{opcode: opPread, fd: uint32(fd), buf: uint64(uintptr(unsafe.Pointer(memory))),
		bytes: uint64(len(b)), offset: off}
	if isWrite {
		o.control.opcode = opPwrite
	}
	s.senders.RLock()
	if s.isOver {
		s.senders.RUnlock()
		return 0, errOver
	}
	s.requests <- o
	s.senders.RUnlock()
	result := <-o.done
	if result < 0 {
		return 0, syscall.Errno(-result)
	}
	return int(result), nil
}

// submit submits operations as they come, all that have come at a time.
func (s *AIO) submit() {
	defer s.ended.Done()
	var controls []*iocb
	for {
		o, isOpen := <-s.requests
		if !isOpen {
			return
		}
		controls = append(controls[:0], s.add(o))
		for len(controls) < s.events && isOpen {
			select {
			case o, isOpen = <-s.requests:
				if isOpen {
					controls = append(controls, s.add(o))
				}
			default:
				isOpen = false
			}
		}
		s.submitAll(controls)
	}
}

func (s *AIO) add(o *operation) *iocb {
	s.mu.Lock()
	s.next++
	o.control.data = s.next
	s.inFlight[s.next] = o
	s.mu.Unlock()
	s.begun.Signal()
	return &o.control
}

func (s *AIO) submitAll(controls []*iocb) {
	for len(controls) > 0 {
		begin := time.Now()
		n, _, errno := syscall.Syscall(syscall.SYS_IO_SUBMIT, s.context, uintptr(len(controls)),
			uintptr(unsafe.Pointer(unsafe.SliceData(controls))))
		s.note("io_submit", begin)
		switch errno {
		case 0:
			controls = controls[n:]
		case syscall.EAGAIN: // the context is full: the other goroutine makes room
			runtime.Gosched()
		case syscall.EINTR:
		default:
			// It is about the first one.
			s.end(controls[0].data, -int64(errno))
			controls = controls[1:]
		}
	}
}

// end hands a result over.
func (s *AIO) end(number uint64, result int64) {
	s.mu.Lock()
	o := s.inFlight[number]
	delete(s.inFlight, number)
	s.mu.Unlock()
	o.done <- result
}

// reap takes events as long as there are operations, or may be.
func (s *AIO) reap() {
	defer s.ended.Done()
	events := make([]ioEvent, eventsMax)
	span := syscall.NsecToTimespec(int64(waitSpan))
	for {
		s.mu.Lock()
		for len(s.inFlight) == 0 {
			if s.over() {
				s.mu.Unlock()
				return
			}
			s.begun.Wait()
		}
		s.mu.Unlock()
		begin := time.Now()
		n, _, errno := syscall.Syscall6(syscall.SYS_IO_GETEVENTS, s.context, 1, eventsMax,
			uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(unsafe.Pointer(&span)), 0)
		s.note("io_getevents", begin)
		if errno != 0 {
			continue // a signal
		}
		for _, event := range events[:n] {
			s.end(event.data, event.res)
		}
	}
}

// over reports whether no operation will come.
func (s *AIO) over() bool {
	s.senders.RLock()
	defer s.senders.RUnlock()
	return s.isOver && len(s.requests) == 0
}
