package sakia

import "sync"

// A posLock is held by the call that uses the file's position. Waiters come in order; a context ends the
// wait of one, the close of the file that of all.
type posLock struct {
	mu      sync.Mutex
	isHeld  bool
	isOver  bool
	waiters []chan bool
}

type lockResult int

const (
	lockHeld lockResult = iota
	lockClosed
	lockCanceled
)

// lock waits for the lock, the close of the file, or done.
func (l *posLock) lock(done <-chan struct{}) lockResult {
	l.mu.Lock()
	if l.isOver {
		l.mu.Unlock()
		return lockClosed
	}
	if !l.isHeld {
		l.isHeld = true
		l.mu.Unlock()
		return lockHeld
	}
	turn := make(chan bool, 1)
	l.waiters = append(l.waiters, turn)
	l.mu.Unlock()
	select {
	case isMine := <-turn:
		if isMine {
			return lockHeld
		}
		return lockClosed
	case <-done:
	}
	l.mu.Lock()
	for i, other := range l.waiters {
		if other == turn {
			l.waiters = append(l.waiters[:i], l.waiters[i+1:]...)
			l.mu.Unlock()
			return lockCanceled
		}
	}
	l.mu.Unlock()
	// It was given meanwhile.
	if <-turn {
		l.unlock()
	}
	return lockCanceled
}

func (l *posLock) unlock() {
	l.mu.Lock()
	if len(l.waiters) > 0 {
		l.waiters[0] <- true
		l.waiters = l.waiters[1:]
	} else {
		l.isHeld = false
	}
	l.mu.Unlock()
}

// close ends all waits. The holder goes on.
func (l *posLock) close() {
	l.mu.Lock()
	l.isOver = true
	for _, turn := range l.waiters {
		turn <- false
	}
	l.waiters = nil
	l.mu.Unlock()
}
