package sakia

import (
	"io/fs"
	"runtime"
	"sync"
	"syscall"
)

// A GroupCommit makes a file durable for many goroutines at once: a log whose writers share syncs.
//
// Writers that call [GroupCommit.AppendDurable] while a sync is under way share one write and one sync after
// it. Or they write, by [GroupCommit.Append] or by the file's methods, and then [GroupCommit.Commit].
//
// The first failure, to append or to sync, is final: all later calls return it. What was committed earlier is
// durable; whether later bytes exist is unknown until the file is read again.
//
// The contents become durable. The name of a new file needs a sync of its directory, once.
type GroupCommit struct {
	file *File

	mu sync.Mutex
	// Where the next append goes.
	end   int64
	syncs uint64
	err   error
	// Requests that no sync has begun for; nil if there is none.
	next *round
	// A goroutine performs rounds.
	isPerforming bool
	// Requests of the last round, and so perhaps of the next one.
	lastJoined int
	// A finished round, whose memory the next one uses.
	spare []byte
}

// A round is one write and one sync, for all that joined.
type round struct {
	parts  []logPart
	joined int
	err    error
	// Closed at its end.
	over chan struct{}
	// Whoever receives from it performs the round.
	turn chan struct{}
}

// A logPart is a range of the file.
type logPart struct {
	off  int64
	data []byte
}

// The yields before a round begins with fewer writers than the last one had: those that it has served come
// again as soon as they run.
const commitYields = 2

// NewGroupCommit takes a file, to be appended to from its end on. EINVAL: it was opened to append, so the
// kernel ignores offsets.
func NewGroupCommit(file *File) (*GroupCommit, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if file.isAppending {
		return nil, &fs.PathError{Op: "commit", Path: file.name, Err: syscall.EINVAL}
	}
	return &GroupCommit{file: file, end: info.Size()}, nil
}

// File returns the file. Appends overwrite what is written beyond the end by its methods.
func (g *GroupCommit) File() *File { return g.file }

// End returns the offset of the next append.
func (g *GroupCommit) End() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.end
}

// Syncs returns the number of syncs so far, with one that was left out since its write failed.
func (g *GroupCommit) Syncs() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.syncs
}

// Failure returns the failure that ended the log; nil if there is none.
func (g *GroupCommit) Failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Append writes after all earlier appends, and returns the offset. The bytes are not durable yet.
func (g *GroupCommit) Append(b []byte) (int64, error) {
	g.mu.Lock()
	if g.err != nil {
		g.mu.Unlock()
		return 0, g.err
	}
	off := g.end
	g.end += int64(len(b))
	g.mu.Unlock()
	if _, err := g.file.WriteAt(b, off); err != nil {
		return 0, g.fail(err)
	}
	return off, nil
}

// AppendDurable writes after all earlier appends, makes the bytes durable together with all earlier writes to
// the file, and returns their offset. The bytes are copied, and written together with those of others.
func (g *GroupCommit) AppendDurable(b []byte) (int64, error) { return g.join(b, true) }

// Commit makes all writes durable that have returned before, by any writer.
func (g *GroupCommit) Commit() error {
	_, err := g.join(nil, false)
	return err
}

func (g *GroupCommit) fail(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
	return err
}

// join adds a request to the next round, and returns when that is over.
func (g *GroupCommit) join(b []byte, appends bool) (int64, error) {
	g.mu.Lock()
	if g.err != nil {
		g.mu.Unlock()
		return 0, g.err
	}
	r := g.next
	if r == nil {
		r = &round{over: make(chan struct{}), turn: make(chan struct{}, 1)}
		g.next = r
	}
	off := g.end
	if appends {
		r.add(off, b, &g.spare)
		g.end += int64(len(b))
	}
	r.joined++
	isPerformer := !g.isPerforming
	g.isPerforming = true
	g.mu.Unlock()
	if !isPerformer {
		select {
		case <-r.over:
			return off, r.err
		case <-r.turn:
		}
	}
	g.perform(r)
	return off, r.err
}

// add adds bytes, behind the last ones if that is their place.
func (r *round) add(off int64, b []byte, spare *[]byte) {
	if last := len(r.parts) - 1; last >= 0 {
		if p := &r.parts[last]; p.off+int64(len(p.data)) == off {
			p.data = append(p.data, b...)
			return
		}
	}
	r.parts = append(r.parts, logPart{off, append((*spare)[:0], b...)})
	*spare = nil
}

// perform performs the next round, and hands the one after it to one of its own writers.
func (g *GroupCommit) perform(r *round) {
	g.mu.Lock()
	for range commitYields {
		if r.joined >= g.lastJoined {
			break
		}
		g.mu.Unlock()
		runtime.Gosched()
		g.mu.Lock()
	}
	g.next = nil
	g.syncs++
	g.lastJoined = r.joined
	err := g.err
	g.mu.Unlock()
	for i := range r.parts {
		if err != nil {
			break
		}
		_, err = g.file.WriteAt(r.parts[i].data, r.parts[i].off)
	}
	if err == nil {
		err = g.file.Datasync()
	}
	g.mu.Lock()
	if g.err == nil {
		g.err = err
	}
	// A failure of an append meanwhile does not undo this sync, but may have lost bytes of this round's writers.
	r.err = g.err
	if len(r.parts) > 0 && cap(r.parts[0].data) <= partMax {
		g.spare = r.parts[0].data
	}
	next := g.next
	if next == nil {
		g.isPerforming = false
	}
	g.mu.Unlock()
	close(r.over)
	if next != nil {
		next.turn <- struct{}{}
	}
}
